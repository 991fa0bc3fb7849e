"""A check around every test: what a test took from the system, it gave back.

    # conftest.py
    from fray.testing.leaks import leaks_nothing, own_temporary_folder, process_wide  # noqa: F401

Counted are this process's threads, child processes and open files (sockets and pipes among them), what is in
the temporary folder where that is one of the session's own, and what is in shared memory under Fray's name.
What a test finds on its way in belongs to fixtures of a wider scope; what a library keeps for the whole
process, on purpose, is named by the fixture `process_wide`.
"""

import contextlib
import gc
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE = 60.0
"""Seconds that threads and processes that are ending may take."""
_own: str | None = None  # the temporary folder, where it is the session's own


@pytest.fixture(scope="session")
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give this process and its children a temporary folder that nobody else writes to.

    Its path is short, because sockets are made in it.
    """
    tmp_path_factory.getbasetemp()  # pytest's own stays where it was
    folder = tempfile.mkdtemp(prefix="t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setattr(sys.modules[__name__], "_own", folder)
        yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def snapshot() -> set[str]:
    """Return what this process holds, a line each; equal lines are the same thing.

    Where there is no /proc only threads and files are seen. Files in a temporary folder that other programs
    write to as well are not counted: see `own_temporary_folder`.
    """
    return _threads() | _children() | _descriptors() | _files()


@pytest.fixture
def process_wide() -> tuple[str, ...]:
    """Patterns of lines of `snapshot` that may stay: what a library makes once and keeps."""
    return ()


@pytest.fixture(autouse=True)
def leaks_nothing(
    own_temporary_folder: Path, process_wide: tuple[str, ...], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, an open file, a file or shared memory behind."""
    before = snapshot()
    yield
    if request.node.funcargs:  # pytest holds them longer, with the connections of a client among them
        request.node.funcargs.clear()
    left = remaining(before, process_wide)
    assert not left, "the test left behind:\n" + "\n".join(sorted(left))


def remaining(
    before: set[str],
    process_wide: tuple[str, ...] = (),
    patience: float = PATIENCE,
    kept: Callable[[], set[str]] = set,
) -> set[str]:
    """Wait until nothing is left that was not there before, `patience` seconds at most; return what is.

    Args:
        process_wide: Patterns of lines that may stay.
        kept: Returns further lines that may stay, as it is now.
    """
    collect_at = time.monotonic()
    deadline = collect_at + patience
    allowed = [re.compile(pattern) for pattern in process_wide]
    known = {_identity(line) for line in before}
    while True:
        left = {line for line in snapshot() if _identity(line) not in known}
        left = {line for line in left if not any(pattern.search(line) for pattern in allowed)}
        if left:
            left -= kept()
        if not left or time.monotonic() > deadline:
            return left
        if (begun := time.monotonic()) >= collect_at:
            gc.collect()  # what only a cycle holds is not lost
            ended = time.monotonic()
            collect_at = ended + (ended - begun)  # no other thread runs meanwhile: they have as long
        time.sleep(0.01)


def _identity(line: str) -> str:
    """What stays the same of a line: a process that has just begun takes another command line."""
    return line.partition(": ")[0] if line.startswith("process ") else line


def _threads() -> set[str]:
    return {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}


def _children() -> set[str]:
    """Child processes, zombies included."""
    found = set()
    for thread in _entries("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            for pid in (thread / "children").read_text().split():
                found.add(f"process {pid}: {_command(pid)}")
    return found


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:100] or "a zombie"
    return "gone"


def _descriptors() -> set[str]:
    found = set()
    for fd in _entries("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found.add(f"file {fd.name} -> {fd.readlink()}")
    return found


def _files() -> set[str]:
    shared = [path for path in _entries("/dev/shm") if path.name.startswith("fray")]
    return {f"path {path}" for path in [*shared, *(_entries(_own) if _own is not None else [])]}


def _entries(folder: str | Path) -> list[Path]:
    try:
        return [Path(folder) / name for name in os.listdir(folder)]  # noqa: PTH208 - names alone are needed
    except OSError:
        return []
