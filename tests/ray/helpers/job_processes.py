"""The processes of a job on a local cluster: who they are, and how one of them is killed."""

import os
import signal
from pathlib import Path

from fray.testing.gates import until


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _of_this_cluster() -> list[int]:
    mark = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}\0".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def driver_of(job_id: str) -> int:
    """The program of a job's Ray job."""

    def found() -> list[int]:
        programs = [(pid, _words(pid)) for pid in _of_this_cluster()]
        return [
            pid for pid, words in programs if b"fray_ray._head.driver" in words and job_id.encode() in words
        ]

    until(lambda: len(found()) == 1, "the driver runs")
    return found()[0]


def kill(*pids: int) -> None:
    """Kill processes, and return when they are gone."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), "they are gone")


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
