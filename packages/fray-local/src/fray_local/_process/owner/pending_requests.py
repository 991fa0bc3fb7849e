"""A worker's request that has no answer yet: what it waits for, and the place that it lends meanwhile."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fray._engine.refs import ERROR, Settlement, unwatch, watch
from fray.backend import pack_exception
from fray_local._process.protocol.values import Blob

if TYPE_CHECKING:
    from fray_local._process.owner.worker_connection import WorkerConnection


class Waiter:
    """Acts once, when enough of what it watches has happened."""

    failed: Callable[[Exception], None]

    def __init__(self, needed: int, act: Callable[[], None], *, stop_on_error: bool = False) -> None:
        self._needed, self._act, self._stop_on_error = needed, act, stop_on_error
        self._done: list[Any] = []  # append and len are atomic, a counter would not be
        self._once = threading.Lock()
        self.sources: list[Any] = []

    def notify(self, source: Any, worklist: list[Settlement]) -> None:
        """Take note that something has happened."""
        self._done.append(source)
        enough = len(self._done) >= self._needed or (self._stop_on_error and source._state == ERROR)
        if enough and self._once.acquire(blocking=False):
            try:
                self._act()
            except Exception as error:  # noqa: BLE001 - a value that cannot travel, say; others watch as well
                self.failed(error)

    def begin(self, sources: Sequence[Any]) -> None:
        """Watch; what has happened already counts."""
        self.sources = list(sources)
        for source in self.sources:
            if not watch(source, self):
                self.notify(source, [])

    def stop(self) -> None:
        """Act no more."""
        self._once.acquire(blocking=False)
        unwatch(self.sources, self)


class PendingRequest:
    """What a worker asked, until it is answered."""

    def __init__(self, worker: "WorkerConnection", number: int, lends: bool) -> None:
        self.worker, self._number, self._lends = worker, number, lends
        self._waiter: Waiter | None = None

    def wait_for(self, waiter: Waiter, sources: Sequence[Any]) -> None:
        """Answer when something has happened; until then the worker's slot is free."""
        self._waiter, waiter.failed = waiter, self.fail
        self.worker.pending_requests[self._number] = self
        if self._lends:
            self.worker.owner.lend(self.worker)
        waiter.begin(sources)

    def answer(self, answer: Any, blobs: Sequence[Blob] = ()) -> None:
        """Answer, and take the slot again."""
        self.withdraw()
        self.worker.answer(self._number, None, answer, blobs)

    def fail(self, error: BaseException) -> None:
        """Answer with an exception."""
        self.withdraw()
        self.worker.answer(self._number, pack_exception(error, traceback_text=""), None)

    def withdraw(self) -> None:
        """Stop waiting: the answer is there, or nobody wants it."""
        if self.worker.pending_requests.pop(self._number, None) is not None:
            if self._waiter is not None:
                self._waiter.stop()
            if self._lends:
                self.worker.owner.reclaim(self.worker)
