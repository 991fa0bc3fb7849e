"""What descends from this process: found, waited for, ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fray._values.delays import poll_delays

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Become the parent of descendants whose own is gone, where the system can: no daemon escapes."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> dict[int, int]:
    """Collect the children that have ended: exit codes by process id, a signal's number negative."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def end_descendants(grace: float, spare: str) -> None:
    """End all that descends from this process: SIGTERM, and SIGKILL to what is left after `grace` seconds.

    Args:
        spare: A word; a process that has it on its command line goes on, and what is below it.
    """
    patience = time.monotonic() + grace
    if grace:
        _send(descendants(spare), signal.SIGTERM)
    for pause in poll_delays(longest=0.05):
        reap()
        left = descendants(spare)
        if not left:
            return
        if time.monotonic() >= patience:
            _send(left, signal.SIGKILL)
        time.sleep(pause)


def descendants(spare: str) -> list[int]:
    """Return the ids of the processes below this one, without those that are spared."""
    children: dict[int, list[tuple[int, list[str]]]] = defaultdict(list)
    for pid, parent, words in _proc() if Path("/proc/self/stat").exists() else _ps():
        children[parent].append((pid, words))
    found: list[int] = []
    fresh = [os.getpid()]
    while fresh:
        fresh = [pid for parent in fresh for pid, words in children[parent] if spare not in words]
        found += fresh
    return found


def _proc() -> Iterator[tuple[int, int, list[str]]]:
    """Yield the id, the parent's id and the command line of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                stat = (entry / "stat").read_text(errors="replace")
                words = (entry / "cmdline").read_text(errors="replace").split("\0")
                yield int(entry.name), int(stat.rpartition(")")[2].split()[1]), words


def _ps() -> Iterator[tuple[int, int, list[str]]]:
    with subprocess.Popen(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], stdout=subprocess.PIPE, text=True
    ) as ps:
        for line in ps.communicate()[0].splitlines():
            pid, parent, *words = line.split()
            if int(pid) != ps.pid:
                yield int(pid), int(parent), words


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
