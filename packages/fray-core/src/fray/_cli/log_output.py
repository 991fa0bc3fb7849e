"""Print the lines of a job's log, as they come."""

import shutil
from collections.abc import Iterable
from typing import TextIO

from fray._cli.output import beginning

_ESCAPE = "\x1b"
_CLEAR, _PLAIN = f"\r{_ESCAPE}[K", f"{_ESCAPE}[0m"


def print_lines(lines: Iterable[str], out: TextIO) -> None:
    """Print each line at once: a filter behind it wants it live.

    On a terminal a step of a progress bar gives way to the next line; elsewhere it is a line of its own.
    """
    terminal, step = out.isatty(), False
    for line in lines:
        end = getattr(line, "end", "\n")
        if terminal and end == "\r":
            shown = beginning(line, shutil.get_terminal_size().columns - 1)
            # A step that takes two rows is not cleared whole; the end of a colour may be cut off.
            out.write(f"{_CLEAR}{shown}{_PLAIN if _ESCAPE in shown else ''}")
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
