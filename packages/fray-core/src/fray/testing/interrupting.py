"""Runs one thing between two lines of another, on its thread, as a finalizer or a signal handler may."""

import sys
from collections.abc import Callable
from typing import Any


def interrupted(act: Callable[[], Any], visit: Callable[[], Any], line: int, module: str = "") -> int:
    """Run `act`, and `visit` at its so many-th line, as a signal handler could; return how many lines ran.

    Where that was the shorter way and had fewer lines, it is visited at its end.

    Args:
        module: Count lines of this one only; by default of all.
    """
    lines = 0

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal lines
        if event == "line" and module in frame.f_globals.get("__name__", ""):
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
