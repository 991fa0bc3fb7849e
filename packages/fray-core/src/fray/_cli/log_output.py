"""Print the lines of a job's log, as they come."""

import shutil
from collections.abc import Iterable
from typing import TextIO

_CLEAR = "\r\x1b[K"


def print_lines(lines: Iterable[str], out: TextIO) -> None:
    """Print each line at once: a filter behind it wants it live.

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
