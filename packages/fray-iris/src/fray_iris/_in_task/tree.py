"""The processes of a replica: its program, and all that it leaves behind."""

import ctypes
import os
import signal
import time

PAUSE = 0.02  # seconds between two looks at what has ended


class Tree:
    """The processes below this one, which is their subreaper: none of them leaves it.

    Attributes:
        main_pid: The program itself, once it has been started.
        status: How that ended, as `waitpid` says it; None while it runs.
    """

    def __init__(self) -> None:
        self.main_pid, self.status = 0, None  # type: int, int | None
        become_subreaper()

    def reap(self) -> bool:
        """Take what has ended; returns whether anything is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main_pid:
                self.status = status

    def end(self, grace: float) -> None:
        """SIGTERM for every process of the tree, and `grace` seconds for them to end."""
        for pid in descendants():
            kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.reap() and time.monotonic() < deadline:
            time.sleep(PAUSE)

    def kill(self) -> None:
        """SIGKILL, until nothing is left."""
        while self.reap():
            for pid in descendants():
                kill(pid, signal.SIGKILL)
            time.sleep(0.005)


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def descendants() -> "list[int]":
    """Return the processes below this one; those whose parents have ended are its own children by now."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != b"Z":
            parents[int(name)] = int(parent)
    found, level = [], {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def become_subreaper() -> None:
    """Let processes whose parents end become children of this one."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def oom_kills() -> int:
    """Return how many processes of this container were ended for want of memory."""
    try:
        with open("/sys/fs/cgroup/memory.events") as file:
            rows = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    return int(rows.get("oom_kill", 0))
