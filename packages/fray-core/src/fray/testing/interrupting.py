"""Interrupts a function on its thread as finalizers and signal handlers do: with a call, or an exception."""

import sys
from collections.abc import Callable
from typing import Any


def interrupted(act: Callable[[], Any], visit: Callable[[], Any], line: int, module: str = "") -> int:
    """Run `act`, and `visit` at its so many-th line, as a signal handler could; return how many lines ran.

    Where that was the shorter way and had fewer lines, it is visited at its end. The lines of finalizers are
    not counted: a collection runs those of earlier tests, and what is raised there Python only reports.

    Args:
        module: Count lines of this one only; by default of all.
    """
    lines = 0

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal lines
        if event == "line" and module in frame.f_globals.get("__name__", "") and not _in_finalizer(frame):
            lines += 1
            if lines == line:
                visit()  # untraced: the interpreter calls no tracer inside of one
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    if lines < line:
        visit()
    return lines


def struck(act: Callable[[], Any], point: int, module: str) -> int:
    """Run `act`, and raise KeyboardInterrupt at its so many-th point in a module; return how many it came to.

    The points are those where the interpreter runs signal handlers, but for the ends of loops: where a
    function begins, and where a call of one that is written in C has returned. Those in a finalizer are left
    out: what is raised there Python only reports.
    """
    points = 0

    def profile(frame: Any, event: str, _argument: Any) -> None:
        nonlocal points
        if event not in ("call", "c_return") or module not in frame.f_globals.get("__name__", ""):
            return
        if _in_finalizer(frame):
            return
        points += 1
        if points == point:
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(before)
    return points


def _in_finalizer(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_globals.get("__name__") == "weakref":
            return True
        frame = frame.f_back
    return False
