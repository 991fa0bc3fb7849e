"""Process trees: which processes belong to one, and how all of it is ended.

A tree ends with its supervisor by what the machine allows, best first (`tree_kill`):

cgroup      the tree is in a control group (version 2) of its own; one write kills all of it at once
subreaper   on Linux orphans become children of the tree's supervisor, so that no descendant is lost
session     elsewhere processes are known by a variable in their environment

Imports little: a job's supervisor starts with it. psutil answers where there is no `/proc`.
"""

from __future__ import annotations

import enum
import os
import signal
import sys
import time

from fray._jobs.processes.control_group import ControlGroup as ControlGroup
from fray._jobs.processes.control_group import groups_folder
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

JOB_VARIABLE = "FRAY_JOB_DIR"
"""In the environment of every process of a job: the directory of its record, unlike any other job's."""

OUTLIVES_JOBS = "fray-outlives-jobs"
"""On the command line of a process that the end of its job leaves alone, as that of a detached actor."""

USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What a user sends to a program, and often to all that runs below it: their default ends a process."""

SUPERVISORS_IGNORE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *USER_SIGNALS)
"""What a process that keeps a process tree ignores, except for those by which it is asked to end.

A signal that is ignored stays ignored in a program: `start_program` restores the defaults of these.
"""

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


class TreeKill(enum.StrEnum):
    """What ends a process tree when its supervisor is killed."""

    CGROUP = "cgroup"
    PID_NAMESPACE = "pid_namespace"
    SUBREAPER = "subreaper"
    SESSION = "session"


class ProcessIdentity(NamedTuple):
    """What identifies a process; its id alone may belong to another by now."""

    pid: int
    started: float
    boot: str

    @property
    def running(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == boot_id() and _started(self.pid) == self.started

    def send(self, number: int) -> bool:
        """Send a signal to this process and no other; whether it was there."""
        if not self.running:
            return False
        send([self.pid], number)
        return True


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process; None when it is gone."""
    started = _started(pid)
    return None if started is None else ProcessIdentity(pid, started, boot_id())


def boot_id() -> str:
    """Return a text that changes when the machine restarts; containers of one machine have the same."""
    if not _LINUX:
        import psutil

        return f"{os.uname().nodename} {psutil.boot_time():.0f}"
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def tree_kill() -> TreeKill:
    """Return what ends a tree of this machine when its supervisor is killed."""
    if not _LINUX:
        return TreeKill.SESSION
    return TreeKill.SUBREAPER if groups_folder() is None else TreeKill.CGROUP


def become_subreaper() -> None:
    """Become the parent of descendants whose own is gone, where the system can: no daemon escapes."""
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let this process have a signal when the thread that forked it ends, where the system can."""
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, number)


def descendants(root: int, spare: str | None = None, *, dead: bool = False) -> list[int]:
    """Return the living processes below one.

    A process that forks and ends during the look hides what it forked, and is dead itself by then. So a tree
    has ended where its subreaper finds none with `dead`, after it has reaped.

    Args:
        spare: A word; a process that has it, or `OUTLIVES_JOBS`, on its command line is left out, with
            what is below it.
        dead: Return those, too, that have ended and were not reaped.
    """
    found: list[int] = []
    waiting = children_of(root)
    while waiting:
        pid = waiting.pop()
        command = command_of(pid)
        if OUTLIVES_JOBS in command or (spare is not None and spare in command):
            continue
        if dead or _started(pid) is not None:
            found.append(pid)
        waiting.extend(children_of(pid))
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of a process, those of all of its threads, zombies included."""
    if not _LINUX:
        return [child for child, parent in _processes(dead=True) if parent == pid]
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except OSError:  # it ended meanwhile, or the kernel does not say
        return found or [child for child, parent in _processes(dead=True) if parent == pid]
    return found


def with_variable(name: str, value: str) -> list[int]:
    """Return the living processes that started with a variable, wherever they hang in the tree."""
    own = os.getpid()
    return [pid for pid, _ in _processes() if pid != own and environment_of(pid).get(name) == value]


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; empty where it cannot be read."""
    if not _LINUX:
        import psutil

        try:
            return list(psutil.Process(pid).cmdline())
        except (psutil.Error, OSError):
            return []
    return _read(f"/proc/{pid}/cmdline").split("\0")


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process started with; empty where it cannot be read."""
    if not _LINUX:
        import psutil

        try:
            return dict(psutil.Process(pid).environ())
        except (psutil.Error, OSError):
            return {}
    pairs = _read(f"/proc/{pid}/environ").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; those that have ended meanwhile are passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def send_group(leader: int, number: int) -> None:
    """Send a signal to a process group, and to the process that leads it, or is about to."""
    for act in (os.killpg, os.kill):
        try:
            act(leader, number)
        except OSError:  # it is gone, or leads no group yet
            continue


def kill_until_gone(find: Callable[[], list[int]], patience: float = 30.0) -> bool:
    """Kill what `find` finds until it finds nothing: some may fork meanwhile. False when time is up.

    Once it has found something it is to find nothing twice: what ends during a look hides what it forked.
    """
    until = time.monotonic() + patience
    pids = find()
    while pids:
        send(pids, signal.SIGKILL)
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)
        pids = find() or find()
    return True


def session_of(pid: int) -> int:
    """Return the session of a process; -1 when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _prctl(option: int, value: int) -> None:
    import ctypes  # 3 ms; there is no other way to call prctl

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _processes(*, dead: bool = False) -> Iterator[tuple[int, int]]:
    """Every process with its parent, zombies only on request."""
    if not _LINUX:
        import psutil

        for process in psutil.process_iter(["ppid", "status"]):
            if dead or process.info["status"] != psutil.STATUS_ZOMBIE:
                yield process.pid, process.info["ppid"]
        return
    for name in os.listdir("/proc"):
        stat = _stat(name) if name.isdigit() else []
        if stat and (dead or stat[0] not in "ZX"):
            yield int(name), int(stat[1])


def _started(pid: int) -> float | None:
    """When a living process started; None for a zombie too."""
    if not _LINUX:
        import psutil

        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
        except psutil.Error:
            return None
    stat = _stat(str(pid))
    return None if not stat or stat[0] in "ZX" else int(stat[19])


def _stat(pid: str) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on: the name before them may hold anything."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""
