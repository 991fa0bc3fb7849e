"""Where words that nobody should see are found: in files that come and go, on command lines."""

import os
from pathlib import Path


def files_with(words: list[str], *folders: Path) -> list[Path]:
    """Return the files that hold one of these words."""
    paths = (Path(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names)
    return [path for path in paths for word in words if word.encode() in _bytes_of(path)]


def command_lines_with(word: str) -> list[bytes]:
    """Return the command lines of processes that hold a word."""
    lines = [_bytes_of(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [line for line in lines if word.encode() in line]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except OSError:  # it has just been removed
        return b""
