"""What actors and streams in a worker process share: a thread pool, and the way in and out of bytes."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from fray._contexts.remote.ending import EndingContext
from fray._contexts.remote.values import filled, pack, unpack
from fray._contracts.remote_engine import Key
from fray._discovery.current import create_context

Reply = Future[bytes]
"""The answer to a request."""
_THREADS = 1000  # streams that wait for something at the same time; threads are made when they are needed


class HostedCalls:
    """Runs calls of one session in a thread pool of this process."""

    def __init__(self, context: EndingContext) -> None:
        self.context = context
        self._lock = threading.Lock()
        self._local: Any = None

    @property
    def local(self) -> Any:
        """The thread pool, made when it is first needed."""
        with self._lock:
            if self._local is None:
                self._local = create_context("threadpool", max_workers=_THREADS)
                self._local.engine.runner.belong_to(self.context)  # what `get_job_context` finds in a method
            return self._local

    def arguments(
        self, data: bytes, slots: Sequence[bytes | None], keys: Sequence[Key]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Unpack a call, with the values that the engine keeps."""
        brought = iter(self.context.fetch_all(keys) if keys else ())
        values = [unpack(self.context, next(brought) if slot is None else slot) for slot in slots]
        fn, args, kwargs = unpack(self.context, data)
        args, kwargs = filled(args, kwargs, values)
        return fn, args, kwargs

    def packed(self, value: Any, what: str, owner: str) -> bytes:
        """Pack a value; what it names lives as long as the session."""
        packed = pack(self.context, value, what)
        if packed.kept:
            self.context.kept.setdefault(owner, []).append(packed.kept)
        self.context.await_arrivals()
        return packed.data

    def abort(self) -> None:
        """End the thread pool, without waiting for what runs."""
        if self._local is not None:
            self._local.abort()
