"""The processes of a Slurm on this machine, found by the folder that they have in their environment."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from fray.backend import descendants, poll_delays

DIES_WITHIN = 20.0  # seconds after SIGKILL, for which the kernel may be busy


def kill_processes(folder: Path, *variables: str) -> None:
    """Kill the jobs' processes of a cluster that have one of these variables in their environment."""
    pids = _processes(folder, *variables)
    # First those that would report to slurmctld how their tasks ended.
    for pid in [*{_step_manager(pid) for pid in pids}, *pids]:
        _kill(pid)


def end_what_is_left(folder: Path) -> list[str]:
    """Kill every process of a cluster until none is left; return the commands of those that stay."""
    deadline = time.monotonic() + DIES_WITHIN
    for pause in poll_delays(shortest=0.02, longest=0.2):
        # Those first that would start others, or report how their tasks ended.
        found = sorted(_processes(folder, everything=True), key=_is_no_manager)
        found += [pid for each in found for pid in descendants(each) if pid not in found]
        if not found:
            return []
        if time.monotonic() > deadline:
            return [f"{pid}: {_proc_text(pid, 'cmdline').replace(chr(0), ' ').strip()}" for pid in found]
        for pid in found:
            _kill(pid)
        time.sleep(pause)
    raise AssertionError("the pauses do not end")


def remove_groups(nodes: Sequence[str]) -> None:
    """Remove the control groups of nodes whose processes have ended: Slurm leaves those of the nodes."""
    # As version 1 of control groups has them, and version 2.
    names = [name for node in nodes for name in (f"slurm_{node}", f"{node}_slurmstepd.scope")]
    for top in (path for name in names for path in Path("/sys/fs/cgroup").glob(f"*/{name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def _processes(folder: Path, *variables: str, everything: bool = False) -> list[int]:
    """Return the jobs' processes of a cluster; with variables, those that have one of these.

    Args:
        everything: Daemons, managers of steps and clients as well.
    """
    mine = f"SLURM_CONF={folder}/"
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            words = _proc_text(int(entry.name), "environ").split("\0")
            is_mine = any(word.startswith(mine) for word in words)
            is_job = any(word.startswith(("SLURM_JOB_ID=", "SLURMD_NODENAME=")) for word in words)
            if is_mine and (everything or is_job) and (not variables or set(variables) & set(words)):
                found.append(int(entry.name))
    return found


def _proc_text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _step_manager(pid: int) -> int:
    """Return the slurmstepd that a process of a job is below; the process itself where that is gone."""
    above = pid
    while above > 1:
        if _proc_text(above, "cmdline").startswith("slurmstepd"):
            return above
        fields = _proc_text(above, "stat").rpartition(")")[2].split()  # state, parent, ...
        above = int(fields[1]) if len(fields) > 1 else 0
    return pid


def _is_no_manager(pid: int) -> bool:
    return not _proc_text(pid, "cmdline").startswith(("slurmd", "slurmstepd"))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
