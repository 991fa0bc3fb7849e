"""Files that are in no folder: they end with the last process that has them open, however it ends."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def memory_files(*contents: bytes | None) -> Iterator[tuple[int | None, ...]]:
    """Make a file for each of these contents, to be passed on to a process that is started meanwhile.

    Yields their descriptors, at the beginning of each; None for None.
    """
    with contextlib.ExitStack() as opened:
        found: list[int | None] = []
        for content in contents:
            if content is None:
                found.append(None)
                continue
            descriptor = _new_file()
            opened.callback(os.close, descriptor)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(descriptor, 0, os.SEEK_SET)
            found.append(descriptor)
        yield tuple(found)


def whole_file(descriptor: int) -> bytes:
    """Return all bytes of an open file, and close it."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _new_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("fray")
    import tempfile  # takes long, for the process that keeps a replica

    with tempfile.TemporaryFile(buffering=0) as file:  # on the disk, without a name from the first moment on
        return os.dup(file.fileno())
