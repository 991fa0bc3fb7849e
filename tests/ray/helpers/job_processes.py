"""The processes of a job on a local cluster: who they are, and how one of them is killed."""

import os
import signal
from pathlib import Path

from fray.testing.gates import until

_DRIVERS = (b"fray_ray._head.driver", b"fray_ray._head.sweep")


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


def driver_of(job_id: str, *, but: int = 0) -> int:
    """The driver of a job, or the coordinator of a sweep; `but` is one that was killed."""

    def found() -> list[int]:
        running = [pid for pid, words in _programs(job_id) if words[1] == b"-m" and words[2] in _DRIVERS]
        return [pid for pid in running if pid != but]

    until(lambda: len(found()) == 1, "the driver runs", 120)
    return found()[0]


def process_of(job_id: str) -> int:
    """The program of a job's Ray job, which starts its drivers; its guardian is its child no more."""

    def found() -> list[int]:
        own = [pid for pid, words in _programs(job_id) if words[3].endswith(b"/job_process.py")]
        return [pid for pid in own if any(_parent(each) == pid for each, _ in _programs(job_id))]

    until(lambda: len(found()) == 1, "the process of the job runs", 120)
    return found()[0]


def _programs(job_id: str) -> list[tuple[int, list[bytes]]]:
    words = [(pid, _words(pid)) for pid in _of_this_cluster()]
    return [(pid, each) for pid, each in words if job_id.encode() in each]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


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
