"""Exclusion without waiting: a thread that finds the state free changes it for all that come meanwhile.

A finalizer or a signal handler runs in the middle of anything, also of a change of the same state by
its own thread. With a lock it would wait for itself; here it leaves its change to the one below.

Signal handlers of the program run after the changes. One that raises (Ctrl-C in a notebook, a time limit
by SIGALRM) would leave a change half made, and the program goes on with that state.
"""

import _signal  # type: ignore[import-not-found]
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
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
        if threading.current_thread() is threading.main_thread():
            _uninterrupted(self._run_all)
        else:
            self._run_all()

    def _run_all(self) -> None:
        while self._acts and self._alone.run(self._run_acts):
            pass

    def _run_acts(self) -> None:
        acts = self._acts
        with guarded():  # to wait in here for what other acts do would never end
            while acts:
                act = acts.popleft()
                try:
                    act()
                except Exception:  # noqa: BLE001 - one that fails must not keep the others
                    sys.excepthook(*sys.exc_info())


# By which programs and systems interrupt; to look at all 64 of them would take 3 µs for each task.
_NAMES = "SIGINT SIGTERM SIGHUP SIGQUIT SIGALRM SIGVTALRM SIGPROF SIGUSR1 SIGUSR2 SIGCHLD SIGXCPU"
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES.split()]
_last: tuple[list[Any], list[int]] = ([], [])  # what was installed for each; those that Python handles
_handlers: dict[int, Callable[[int, FrameType | None], object]] = {}  # the program's own, by signal
_noted: dict[int, FrameType | None] = {}
_deferring = False


def _uninterrupted(act: Callable[[], None]) -> None:
    """Call something in the main thread; the handlers of signals that come meanwhile run after it.

    By `_signal`, because `signal` makes enums of what it takes and returns: 20 µs for each task.
    """
    global _deferring
    if _deferring:  # this is inside of another one
        act()
        return
    signals = _handled_signals()
    try:
        _deferring = True
        for number in signals:
            _signal.signal(number, _gate)
        act()
    finally:
        _deferring = False
        try:
            for number in signals:
                _signal.signal(number, _handlers[number])
        finally:
            _deliver()


def _gate(number: int, frame: FrameType | None) -> None:
    """Stand for the handlers of all signals.

    Where one that is back raises before the others are, this stays for those, until the next change.
    """
    if _deferring:
        _noted[number] = frame
    else:
        _handlers[number](number, frame)


def _handled_signals() -> list[int]:
    """Return which signals the program handles, and note how."""
    global _last
    installed = list(map(_signal.getsignal, _SIGNALS))
    if installed != _last[0]:
        found = {number: each for number, each in zip(_SIGNALS, installed, strict=True) if callable(each)}
        _handlers.update({number: each for number, each in found.items() if each is not _gate})
        _last = installed, list(found)
    return _last[1]


def _deliver() -> None:
    """Call the handlers of what has come, each of them although one before it raises."""
    if _noted:
        number, frame = _noted.popitem()
        try:
            _handlers[number](number, frame)
        finally:
            _deliver()
