"""Know processes for sure: an id alone may belong to another process by now.

The supervisor loads this in a bare interpreter, so it needs the standard library only; psutil
answers where there is no `/proc`.
"""

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

# In the environment of every process of a job: the directory of its record, unlike any other job's.
COOKIE = "FRAY_JOB_DIR"
_PROC = sys.platform == "linux"


def identify(pid: int) -> "dict[str, Any] | None":
    """Return what tells this process from every other, before and after a restart; None when it is gone."""
    started = _started(pid)
    return None if started is None else {"pid": pid, "started": started, "boot": boot_id()}


def alive(identity: "dict[str, Any] | None") -> bool:
    """Whether the very process that was identified still runs."""
    if identity is None or identity["boot"] != boot_id():
        return False
    return bool(_started(identity["pid"]) == identity["started"])


def boot_id() -> str:
    """Return a text that changes when the machine restarts; start times count from then."""
    if not _PROC:
        return ""  # there start times are seconds since the epoch
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def descendants(root: int, job_dir: str) -> list[int]:
    """Return the living processes below `root`, without those that belong to another job."""
    children: dict[int, list[int]] = {}
    for pid, parent in _living():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        if cookie(pid) in (None, job_dir):
            found.append(pid)
            waiting.extend(children.get(pid, ()))
    return found


def with_cookie(job_dir: str) -> list[int]:
    """Return the living processes that carry the job's cookie, wherever they hang in the process tree."""
    return [pid for pid, _ in _living() if pid != os.getpid() and cookie(pid) == job_dir]


def cookie(pid: int) -> str | None:
    """Return the job directory in a process's environment; None where it has none, or is not ours to read."""
    value = environment_of(pid).get(COOKIE)
    return None if value is None else str(value)


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process started with; empty where it cannot be read."""
    if not _PROC:
        return _psutil_environment(pid)
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def send(pids: "Iterable[int]", number: int) -> None:
    """Send a signal to processes, those that have ended meanwhile passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_until_gone(find: "Callable[[], list[int]]") -> None:
    """Kill what `find` finds until it finds nothing: some may fork meanwhile."""
    while pids := find():
        send(pids, signal.SIGKILL)
        time.sleep(0.002)


def _living() -> "Iterator[tuple[int, int]]":
    """Every process that is no zombie, with its parent."""
    if not _PROC:
        yield from _psutil_living()
        return
    for name in os.listdir("/proc"):
        stat = _stat(name) if name.isdigit() else None
        if stat is not None and stat[0] not in "ZX":
            yield int(name), int(stat[1])


def _started(pid: int) -> "float | None":
    if not _PROC:
        return _psutil_started(pid)
    stat = _stat(str(pid))
    return None if stat is None or stat[0] in "ZX" else int(stat[19])


def _stat(pid: str) -> list[str] | None:
    """The fields of `/proc/PID/stat` from the state on: the name before them may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def _psutil_living() -> "Iterator[tuple[int, int]]":
    import psutil

    for process in psutil.process_iter(["ppid", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            yield process.pid, process.info["ppid"]


def _psutil_started(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def _psutil_environment(pid: int) -> dict[str, str]:
    import psutil

    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}
