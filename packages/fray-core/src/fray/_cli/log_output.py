"""Print the lines of a job's log, as they come."""

import re
import shutil
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TextIO

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLEAR = "\r\x1b[K"


def print_lines(lines: Iterable[str], out: TextIO) -> None:
    """Print each line at once: whoever filters a log wants it live.

    On a terminal a step of a progress bar gives way to the next line; elsewhere it is a line of its own.
    """
    terminal, step = out.isatty(), False
    for line in lines:
        end = getattr(line, "end", "\n")
        if terminal and end == "\r":
            width = shutil.get_terminal_size().columns - 1
            out.write(f"{_CLEAR}{line[:width]}")
            step = True
        else:
            if step:
                out.write(_CLEAR)
                step = False
            out.write(line)
            out.write("\n" if end == "\r" else end)
        out.flush()
    if step:
        out.write("\n")


def moment(_ctx: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """Convert a time, `10m` ago or as ISO 8601 has it, to seconds since the epoch."""
    if value is None:
        return None
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value.strip()):
        return time.time() - float(found[1]) * _UNITS[found[2]]
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError as error:
        expected = "an age such as 30s, 10m, 2h or 1d, or a time such as 2026-05-01T12:00"
        raise click.BadParameter(f"expected {expected}, got {value!r}") from error
