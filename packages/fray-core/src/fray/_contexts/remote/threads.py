"""A thread that runs acts one after the other, started by the first and gone when it was idle for a while."""

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from fray._values.threads import NoThreadError, run_aside, start_thread

_IDLE = 1.0
"""Seconds without an act after which the thread ends; the next act starts another."""


class SerialThread:
    """Runs acts in the order in which they came, on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._acts: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._running = 0  # threads that will look into the queue again: 0 or 1
        self._thread: threading.Thread | None = None

    def run(self, act: Callable[[], object]) -> None:
        """Queue an act; it never blocks."""
        self._acts.put(act)
        with self._lock:
            if self._running:
                return
            self._running = 1
            self._thread = thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            start_thread(thread)
        except NoThreadError:  # the program has ended
            self._thread = None
            self._work(0.0)  # here; meanwhile other threads only queue

    def _work(self, idle: float = _IDLE) -> None:
        while True:
            try:
                act = self._acts.get(timeout=idle)
            except queue.Empty:
                with self._lock:
                    if self._acts.empty():
                        self._running = 0
                        return
                continue
            if act is None:
                return
            try:
                act()
            except Exception:  # noqa: BLE001 - one that fails must not keep the others
                sys.excepthook(*sys.exc_info())
            del act  # what it holds is not to live until the next one comes

    def close(self) -> None:
        """End the thread after what is queued; acts that come later run on no thread."""
        with self._lock:
            thread, running = self._thread, self._running
            self._running = 1
        self._acts.put(None)
        if running and thread is not None and thread is not threading.current_thread():
            thread.join()


class Fresh:
    """Runs each act on a thread of its own: one that waits keeps no other."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, act: Callable[[], Any]) -> None:
        """Start a thread for an act."""
        run_aside(act, self._name)
