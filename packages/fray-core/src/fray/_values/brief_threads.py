"""Threads for calls that block: started when they are needed, gone soon after."""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from fray._values.threads import run_aside

R = TypeVar("R")

_IDLE = 0.1  # seconds that a thread waits for another call; a new one costs a thousandth of that


class BriefThreads:
    """Runs calls in at most so many threads. They are daemons: no call keeps a program from ending."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()  # a forked child has none of its parent's threads
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads = self._idle = self._unclaimed = 0

    def submit(self, call: Callable[[], R]) -> "Future[R]":
        """Run a call as soon as a thread is free."""
        if self._pid != os.getpid():
            self._start()
        future: Future[R] = Future()
        with self._lock:
            self._calls.put((future, call))
            start = not self._idle and self._threads < self._most
            self._threads += start
            if self._idle:
                self._idle -= 1
            else:
                self._unclaimed += 1  # for the next thread that is free
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
        with self._lock:
            if self._unclaimed:
                self._unclaimed -= 1
            else:
                self._idle += 1
        while True:
            try:
                return self._calls.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():  # else a call came that counts on this thread
                        self._idle -= 1
                        self._threads -= 1
                        return None
