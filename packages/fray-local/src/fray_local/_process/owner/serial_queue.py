"""Exclusion without waiting: a thread that finds the state free changes it for all that come meanwhile.

A finalizer or a signal handler runs in the middle of anything, also of a change of the same state by
its own thread. With a lock it would wait for itself; here it leaves its change to the one below.
"""

import sys
from collections import deque
from collections.abc import Callable

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
        acts = self._acts
        try:
            with guarded():  # to wait in here for what other acts do would never end
                while acts:
                    acts.popleft()()
        except Exception:  # noqa: BLE001 - one that fails must not keep the others
            sys.excepthook(*sys.exc_info())
