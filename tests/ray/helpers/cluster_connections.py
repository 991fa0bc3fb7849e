"""The connections of this process whose other end is a process of a cluster."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def connections_of(variable: str) -> set[str]:
    """Return those to processes that were started with a variable, as lines of a `snapshot` of leaks."""
    theirs = set()
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) != os.getpid() and _has(process, variable):
            theirs |= {inode for inode, _ in _sockets(process)}
    ends = {ports: inode for inode, ports in _connections()}
    ours = {inode for ports, inode in ends.items() if ends.get(ports[::-1]) in theirs}
    return {line for inode, line in _sockets(Path("/proc/self")) if inode in ours}


def _has(process: Path, variable: str) -> bool:
    try:
        return f"{variable}\0".encode() in (process / "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return False


def _sockets(process: Path) -> Iterator[tuple[str, str]]:
    """The sockets of a process: the inode, and the line of the descriptor."""
    try:
        files = list((process / "fd").iterdir())
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError):  # it has just been closed
            target = os.fspath(file.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1], f"file {file.name} -> {target}"


def _connections() -> Iterator[tuple[str, tuple[str, str]]]:
    """The connections of this machine by inode: the port of this end, and that of the other."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            local, remote, inode = words[1], words[2], words[9]
            yield inode, (local.rpartition(":")[2], remote.rpartition(":")[2])
