"""Blocking calls in threads, made once for all that request them: ten tabs cost a cluster what one costs."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from fray._values.threads import NoThreadError, start_thread

T = TypeVar("T")

_MOST_KEPT = 64  # answers; the oldest go
_KEPT_FOR = 60.0  # seconds in which nobody asked
_SHARE = 4.0  # a call that takes a second is made every four at most
_STALE_AFTER = 0.3  # seconds that a page waits which could show the last answer


class DaemonThreads:
    """A few threads for calls that may hang: a program that ends does not wait for them."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Let a thread make a call.

        Raises:
            NoThreadError: There is none, and none can be started.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._busy >= self._threads and self._threads < self._count:
                try:
                    start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
                    self._threads += 1
                except NoThreadError:
                    if not self._threads:
                        raise
            self._busy += 1
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Let the threads end after what they are at."""
        with self._lock:
            for _ in range(self._threads):
                self._calls.put(None)

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it is raised in the caller
                    future.set_exception(error)
            del entry, future, call
            with self._lock:
                self._busy -= 1


@dataclass(frozen=True)
class Looked(Generic[T]):
    """What is known of something that was requested.

    Args:
        value: The last answer; None where there is none yet.
        at: When that was, in seconds since the epoch.
        error: Why there is no newer one.
    """

    value: T | None = None
    at: float | None = None
    error: Exception | None = None

    @property
    def loading(self) -> bool:
        """Whether nothing is known yet, also no failure."""
        return self.at is None and self.error is None


class _Entry:
    def __init__(self) -> None:
        self.looked: Looked[Any] = Looked()
        self.task: asyncio.Task[None] | None = None
        self.next = 0.0  # when it may be requested again
        self.wanted = 0.0
        self.generation = 0


class SharedCalls:
    """Answers of one cluster, or one server, by key; all in one event loop.

    Args:
        name: Of its threads.
        threads: How many calls may be under way; they hang without holding up what has threads of its own.
    """

    def __init__(self, name: str, threads: int = 8) -> None:
        self._threads = DaemonThreads(name, threads)
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    async def get(
        self,
        key: Hashable,
        call: Callable[[], T],
        *,
        max_age: float = 1.0,
        patience: float = 5.0,
        is_part: Callable[[T], bool] = lambda _: False,
    ) -> Looked[T]:
        """Return what a call answers, or answered a moment ago.

        Args:
            max_age: Seconds for which an answer is good.
            patience: Seconds to wait for the first answer.
            is_part: Whether an answer is only a part: the rest may be requested at once.
        """
        entry = self._entry(key)
        if entry.task is None and time.monotonic() >= entry.next:
            entry.task = asyncio.create_task(self._ask(entry, call, max_age, is_part))
        if entry.task is not None:
            known = entry.looked.at is not None
            await asyncio.wait([entry.task], timeout=_STALE_AFTER if known else patience)
        return entry.looked

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call that changes something; what was known before is requested again."""
        try:
            return await asyncio.wrap_future(self._threads.submit(call))
        finally:
            for entry in self._entries.values():
                entry.next = 0.0
                entry.generation += 1

    def close(self) -> None:
        """Stop the calls."""
        self._threads.close()
        for entry in self._entries.values():
            if entry.task is not None:
                entry.task.cancel()

    def _entry(self, key: Hashable) -> _Entry:
        now = time.monotonic()
        entry = self._entries.setdefault(key, _Entry())
        entry.wanted = now
        self._entries.move_to_end(key)
        for oldest, each in list(self._entries.items())[:-1]:
            if len(self._entries) <= _MOST_KEPT and now - each.wanted < _KEPT_FOR:
                break
            if each.task is None:  # a call that hangs keeps none of the others
                del self._entries[oldest]
        return entry

    async def _ask(
        self, entry: _Entry, call: Callable[[], T], max_age: float, is_part: Callable[[T], bool]
    ) -> None:
        started, generation = time.monotonic(), entry.generation
        part = False
        try:
            value = await asyncio.wrap_future(self._threads.submit(call))
            part = is_part(value)
            entry.looked = Looked(value, time.time())
        except Exception as error:  # noqa: BLE001 - the page says it
            entry.looked = Looked(entry.looked.value, entry.looked.at, error)
        finally:
            entry.task = None
            took = time.monotonic() - started
            # What was changed meanwhile may not be in the answer.
            fresh = generation == entry.generation and not part
            entry.next = time.monotonic() + max(max_age, took * _SHARE) if fresh else 0.0
