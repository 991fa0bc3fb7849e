"""All processes of one job, seen from its supervisor: reap them, find them, end them.

On Linux the supervisor is a sub-reaper: a process that leaves its session or forks twice becomes
its child, never init's. Elsewhere the cookie in their environment finds them.
"""

import os
import signal
import sys
import time

from fray_local._supervisor.mailbox import Mailbox, StopRequested, post
from fray_local._supervisor.processes import alive, descendants, kill_until_gone, send, with_cookie

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LINUX = sys.platform == "linux"


class Tree:
    """The processes below this one, those of jobs that they launched left out."""

    def __init__(self, job_dir: str, mailbox: Mailbox) -> None:
        self._dir, self._mailbox = job_dir, mailbox
        self._childless = False
        if _LINUX:
            _become_subreaper()

    def reap(self) -> dict[int, int]:
        """Return the children that have ended, with their exit codes."""
        ended: dict[int, int] = {}
        self._childless = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return ended
            if pid == 0:
                return ended
            ended[pid] = os.waitstatus_to_exitcode(status)

    def members(self) -> list[int]:
        """Return the living processes of the job."""
        if not _LINUX:
            return with_cookie(self._dir)
        # Who has no child has no descendant either: orphans would be its children.
        return [] if self._childless else descendants(os.getpid(), self._dir)

    def end(self, grace: float) -> dict[int, int]:
        """End every process, with SIGTERM and `grace` seconds later SIGKILL; return children's exit codes."""
        ended = self.reap()
        deadline = time.monotonic() + grace
        if grace > 0:
            send(self.members(), signal.SIGTERM)
        while members := self.members():
            if time.monotonic() >= deadline:
                send(members, signal.SIGKILL)
            try:
                # Not every end is a child's: those deeper down are looked for every few milliseconds.
                self._mailbox.wait_until(max(deadline, time.monotonic() + 0.005), at_most=0.05)
            except StopRequested as stop:
                deadline = min(deadline, time.monotonic() + stop.grace)
            ended.update(self.reap())
        return ended

    def end_session(self, leader: int) -> None:
        """Kill what a replica's main process left in its session, before its next attempt starts."""
        if not self._childless:
            self.send_session(leader, signal.SIGKILL)

    def send_session(self, leader: int, number: int) -> None:
        """Send a signal to a replica's main process and to all that is in its session."""
        send((pid for pid in self.members() if _session(pid) == leader), number)

    def clear(self) -> None:
        """Kill every process, whichever session it went to; children's exit codes are left to `reap`."""
        kill_until_gone(self.members)

    def tell_children(self, grace: float) -> bool:
        """Ask the jobs that this one launched to stop; whether there are any."""
        running = list(_running_children(self._dir))
        for child in running:
            post(child, f"stop {grace}")
        return bool(running)

    def wait_for_children(self, grace: float) -> None:
        """Stop the jobs that this one launched, those of the last moment included, until none runs."""
        while self.tell_children(grace):
            self.reap()
            time.sleep(0.01)


def _running_children(job_dir: str) -> "Iterator[str]":
    from fray_local._supervisor.status import read_json

    below = os.path.join(job_dir, "jobs")
    for name in os.listdir(below) if os.path.isdir(below) else ():
        child = os.path.join(below, name)
        if not name.startswith(".") and alive(read_json(os.path.join(child, "supervisor.json"))):
            yield child


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _become_subreaper() -> None:
    import ctypes  # 3 ms; there is no other way to call prctl

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
