"""Exclusion without waiting: a thread that finds the state free changes it for all that come meanwhile.

A finalizer or a signal handler runs in the middle of anything, also of a change of the same state by
its own thread. With a lock it would wait for itself; here it leaves its change to the one below.

Ctrl-C comes after the changes: a notebook that goes on after it needs a state that is whole.
"""

import _signal  # type: ignore[import-not-found]
import sys
import threading
from collections import deque
from collections.abc import Callable
from signal import SIGINT
from types import FrameType
from typing import Any

from fray.backend import OneAtATime, guarded


class SerialQueue:
    """Runs acts one at a time, in the order in which they came, on threads that bring one."""

    __slots__ = ("_acts", "_alone")

    def __init__(self) -> None:
        self._alone = OneAtATime()
        self._acts: deque[Callable[[], object]] = deque()

    def run(self, act: Callable[[], object]) -> None:
        """Run an act now, or let the thread run it that runs another one; never wait."""
        self._acts.append(act)
        while self._acts and self._alone.run(self._run_all):
            pass

    def _run_all(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _uninterrupted(self._run_acts)
        else:
            self._run_acts()

    def _run_acts(self) -> None:
        acts = self._acts
        try:
            with guarded():  # to wait in here for what other acts do would never end
                while acts:
                    acts.popleft()()
        except Exception:  # noqa: BLE001 - one that fails must not keep the others
            sys.excepthook(*sys.exc_info())


def _uninterrupted(act: Callable[[], None]) -> None:
    """Call something in the main thread; Ctrl-C comes after it.

    By `_signal`, because `signal` makes enums of what it takes and returns: 20 µs for each task.
    """
    handler: Any = _signal.getsignal(SIGINT)
    if not callable(handler) or handler is _note:  # it raises nothing, or this is inside of another one
        act()
        return
    _noted.clear()
    try:
        _signal.signal(SIGINT, _note)
        act()
    finally:
        _signal.signal(SIGINT, handler)
    if _noted:
        handler(SIGINT, _noted.pop())


_noted: list[FrameType | None] = []


def _note(_: int, frame: FrameType | None) -> None:
    _noted.append(frame)
