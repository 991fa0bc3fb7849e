"""Threads for calls that block: started when they are needed, gone soon after."""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from fray._values.threads import run_aside

R = TypeVar("R")

_IDLE = 0.1  # seconds that a thread waits for another call; a new one costs a thousandth of that


class BriefThreads:
    """Runs calls in at most so many threads. They are daemons: no call keeps a program from ending."""

    # They do not wait at one `queue.SimpleQueue`. Before Python 3.13 its `get(timeout=)` waits for ever where
    # another thread took what this one was woken for, and this one's time was over before it could see that.

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()  # a forked child has none of its parent's threads
        self._changed = threading.Condition()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()  # that no thread has taken
        self._threads = self._idle = 0
        self._waking = False  # a thread that was idle is about to look for a call

    def submit(self, call: Callable[[], R]) -> "Future[R]":
        """Run a call as soon as a thread is free."""
        if self._pid != os.getpid():
            self._start()
        future: Future[R] = Future()
        with self._changed:
            self._calls.append((future, call))
            start = len(self._calls) > self._idle and self._threads < self._most
            self._threads += start
            self._wake_one()
        if start:
            # A call that finds no thread, because the program has ended, is done when this returns.
            run_aside(self._run, self._name)
        return future

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            future, call = next_one
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it is raised where the future is read
                    future.set_exception(error)
            del future, call, next_one  # or they would live as long as the thread is idle

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._calls:
                self._idle += 1
                woken = self._changed.wait(_IDLE)
                self._idle -= 1
                self._waking = False
                if not woken and not self._calls:
                    self._threads -= 1
                    return None
            next_one = self._calls.popleft()
            self._wake_one()
            return next_one

    def _wake_one(self) -> None:
        """Wake a thread for the next call, one at a time: one that has just done its call may be faster."""
        if self._calls and self._idle and not self._waking:
            self._waking = True
            self._changed.notify()
