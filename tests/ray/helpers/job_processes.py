"""The processes of a cluster's jobs on this machine: who they are, and how one of them is killed."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray as typed_ray

from fray.testing.gates import until

ray: Any = typed_ray
_SCHEDULER = b"ray::SchedulerActor"
_OWN = b"/job_process.py"
_RAYS = b"ray::JobSupervisor"
_ACTOR = b"ray::ReplicaActor"
_KEEPS = b"process_supervisor import main"
_STARTS = {"starter": "guardian", "guardian": "process supervisor"}


def _words(pid: int) -> list[bytes]:
    """The command line of a process, at least one word: a zombie's is empty."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]


def _of_this_cluster() -> dict[int, list[bytes]]:
    mark = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}\0".encode()
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_bytes():
                found[int(process.name)] = _words(int(process.name))
        except OSError:
            continue
    return found


def _one(what: str, is_it: Callable[[int, list[bytes]], bool]) -> int:
    def found() -> list[int]:
        return [pid for pid, words in _of_this_cluster().items() if is_it(pid, words)]

    (pid,) = until(lambda: pids if len(pids := found()) == 1 else [], f"{what} runs", 200)
    return pid


def scheduler(*, but: int = 0) -> int:
    """The scheduler of the cluster; `but` is one that was killed."""
    return _one("the scheduler", lambda pid, words: words[0].startswith(_SCHEDULER) and pid != but)


def kill_scheduler() -> int:
    """Kill the scheduler, and return the next one."""
    before = scheduler()
    kill(before)
    return scheduler(but=before)


def end_scheduler() -> None:
    """End the scheduler for good, in a process that has joined the cluster: Ray starts no other."""
    before = scheduler()
    ray.kill(ray.get_actor(f"scheduler-{version('fray-ray')}", "fray"))
    until(lambda: not alive(before), "the scheduler is gone")


def gcs() -> int:
    """The GCS of the cluster: the store and the directory of the head."""
    return _one("the GCS", lambda _, words: words[0].endswith(b"/gcs_server"))


def dashboard() -> int:
    """The dashboard of the cluster."""
    return _one("the dashboard", lambda _, words: any(word.endswith(b"/dashboard.py") for word in words))


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a process for a while: it is there, and does nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(pid, signal.SIGCONT)


def process_of(job_id: str, *, but: int = 0) -> int:
    """The process that stands for a job in Ray's table; `but` is one that was killed."""

    def is_it(pid: int, words: list[bytes]) -> bool:
        own = any(word.endswith(_OWN) for word in words) and job_id.encode() in words
        return own and pid != but

    return _one("the job's process", is_it)


def programs_with(job_id: str) -> list[int]:
    """The processes of the cluster whose command line names a job."""
    return [
        pid for pid, words in _of_this_cluster().items() if any(job_id.encode() in word for word in words)
    ]


def shell_of(job_id: str) -> int:
    """The shell that starts that process again: what Ray's supervisor of the job has started."""
    return parent(process_of(job_id))


def supervisor_of(job_id: str) -> int:
    """Ray's supervisor of a job: the process of the actor that has started that shell."""
    pid = parent(shell_of(job_id))
    assert _words(pid)[0].startswith(_RAYS), _words(pid)
    return pid


def process_supervisors() -> dict[str, int]:
    """What keeps the only replica of the cluster on its node, by role: `starter`, `guardian`, ….

    The starter is what the actor starts; it ends as soon as it has started the guardian. The program is
    among them for a moment: it has the command line of the process supervisor until it has its own.
    """
    cluster = _of_this_cluster()
    found = {pid for pid, words in cluster.items() if any(_KEEPS in word for word in words)}

    def role(pid: int) -> str:
        above = parent(pid)
        if above not in found:
            return "starter" if cluster.get(above, [b""])[0].startswith(_ACTOR) else "guardian"
        return _STARTS.get(role(above), "program")

    return {role(pid): pid for pid in found}


def parent(pid: int) -> int:
    """The parent of a process; 0 where that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill(*pids: int) -> None:
    """Kill processes, and return when they are gone."""
    assert min(pids) > 1, f"that is no process of a job: {pids}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), "they are gone")


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
