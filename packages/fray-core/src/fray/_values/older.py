"""Warn of an older spelling: once for each, at the line of the program that uses it."""

import sys
import warnings

_warned: set[str] = set()


def warn_older(older: str, today: str) -> None:
    """Issue a `DeprecationWarning` with today's spelling, the first time that a process uses this one."""
    if older in _warned:
        return
    _warned.add(older)
    frame = sys._getframe(1)
    while frame.f_back is not None and _passes_on(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{older} is an older spelling of {today}",
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _passes_on(module: str) -> bool:
    return module == "fray" or module.startswith(("fray.", "importlib."))
