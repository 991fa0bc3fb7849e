"""What a worker prints goes through two pipes to its owner, which writes it to its own streams."""

import contextlib
import io
import os
import sys
from typing import Any


class _Counted(io.FileIO):
    """Knows whether something was written since it was asked last."""

    wrote = False

    def write(self, data: Any, /) -> int:
        self.wrote = True
        return super().write(data)


_outputs: list[tuple[io.TextIOWrapper, _Counted]] = []


def redirect(stdout: int, stderr: int) -> None:
    """In a worker: write what is printed, by whatever part of the process, to two descriptors."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        raw = _Counted(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        _outputs.append((stream, raw))


def line_by_line() -> None:
    """In a detached actor: print to where standard output goes already."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def flush() -> bool:
    """In a worker: send what was printed on its way; whether there was anything since the last time."""
    wrote = False
    for stream, raw in _outputs:
        with contextlib.suppress(ValueError, OSError):  # the program closed it, or its descriptor
            stream.flush()
        wrote = wrote or raw.wrote
        raw.wrote = False
    return wrote
