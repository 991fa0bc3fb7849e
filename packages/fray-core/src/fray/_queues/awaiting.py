"""Answers for coroutines: one thread requests those of all that wait on a queue."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from fray._contracts.replies import Reply
from fray._values.threads import NoThreadError, start_thread

_MOST_THREADS = 8
_LONGEST_ASK = 1.0  # seconds; how long a thread outlives the last waiter
_MOST_ASKED = 500  # items in one question

Fetch = Callable[..., Mapping[str, Reply]]
Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Reply]"]


class ReplyWatcher:
    """Fetches the answers that coroutines wait for from one queue.

    A request that is under way does not include items that come later. Those are requested by another
    thread, up to a few; threads whose questions end leave what is left to one of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Waiter]] = {}
        self._unasked: dict[str, None] = {}
        self._threads = 0

    async def wait(self, item_id: str, fetch: Fetch) -> Reply:
        """Return the answer to an item when it is there."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = (loop, loop.create_future())
        with self._lock:
            known = item_id in self._waiting
            self._waiting.setdefault(item_id, []).append(waiter)
            if not known:
                self._unasked[item_id] = None
            start = not known and self._threads < _MOST_THREADS
            self._threads += start
        try:
            if start:
                self._start_asking(fetch)
            return await waiter[1]
        finally:
            with self._lock:
                self._forget(item_id, waiter)

    def _start_asking(self, fetch: Fetch) -> None:
        try:
            start_thread(threading.Thread(target=self._ask, args=(fetch,), name="fray-replies", daemon=True))
        except NoThreadError:
            with self._lock:
                self._threads -= 1
            raise

    def _forget(self, item_id: str, waiter: Waiter) -> None:
        waiters = self._waiting.get(item_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[item_id]
                self._unasked.pop(item_id, None)

    def _ask(self, fetch: Fetch) -> None:
        while asked := self._next():
            try:
                found = fetch(asked, wait=_LONGEST_ASK)
            except Exception as error:  # noqa: BLE001 - it belongs to those who wait
                for item_id in asked:
                    self._settle(item_id, None, error)
                continue
            for item_id, reply in found.items():
                self._settle(item_id, reply, None)
            with self._lock:
                left = (item_id for item_id in asked if item_id in self._waiting)
                self._unasked.update(dict.fromkeys(left))

    def _next(self) -> list[str]:
        with self._lock:
            asked = list(self._unasked)[:_MOST_ASKED]
            for item_id in asked:
                del self._unasked[item_id]
            if not asked:
                self._threads -= 1
            return asked

    def _settle(self, item_id: str, reply: Reply | None, error: Exception | None) -> None:
        with self._lock:
            waiters = self._waiting.pop(item_id, [])
        for loop, future in waiters:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_tell, future, reply, error)


def _tell(future: "asyncio.Future[Reply]", reply: Reply | None, error: Exception | None) -> None:
    if future.done():
        return
    if reply is not None:
        future.set_result(reply)
    elif error is not None:
        future.set_exception(error)


_watchers: "WeakKeyDictionary[Any, ReplyWatcher]" = WeakKeyDictionary()
_lock = threading.Lock()


def _reset_in_child() -> None:
    """Have a forked child wait for no lock that another thread of its parent held."""
    global _lock
    _lock = threading.Lock()
    _watchers.clear()


os.register_at_fork(after_in_child=_reset_in_child)


def watcher_of(queue: Any) -> ReplyWatcher:
    """Return the one of this queue, in this process."""
    with _lock:
        watcher = _watchers.get(queue)
        if watcher is None:
            watcher = _watchers[queue] = ReplyWatcher()  # holds no queue: else none would ever be freed
        return watcher
