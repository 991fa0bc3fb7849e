"""The processes of one job, as its supervisor sees them: all below it but the jobs that the job launched."""

from __future__ import annotations

import os
import sys

from fray._jobs import process_tree
from fray._jobs.records.files import CHILDREN

SUPERVISOR_MODULE = "fray._jobs.supervisor"
"""On the command line of every supervisor: those of its child jobs are not processes of the job itself."""


class JobTree:
    """The tree below this process."""

    def __init__(self, record: str) -> None:
        self._record = record
        self.childless = False
        """Whether this process has no child; then it has no descendant: orphans would be its children."""

    def members(self) -> list[int]:
        """Return the living processes of the job, without those of jobs below it.

        Raises:
            OSError: The machine does not say, as with too many open files; that passes.
        """
        return [] if self.childless else members(self._record)

    def remains(self) -> list[int]:
        """Return them with those that have ended and were not reaped; where there is none the tree has ended.

        Raises:
            OSError: As with `members`.
        """
        return [] if self.childless else members(self._record, dead=True)

    def send(self, number: int) -> None:
        """Send a signal to all of them, as far as the machine says which they are."""
        try:
            pids = self.members()
        except OSError:
            return  # those that are to be killed are looked for until none is left
        process_tree.send(pids, number)

    def send_session(self, leader: int, number: int) -> None:
        """Send a signal to those that a replica's main process has in its session."""
        try:
            pids = [pid for pid in self.members() if process_tree.session_of(pid) == leader]
        except OSError:
            process_tree.send_group(leader, number)
            return
        process_tree.send(pids, number)

    def tell_children(self, grace: float) -> bool:
        """Ask the jobs below it to stop; whether any runs."""
        if not os.path.isdir(os.path.join(self._record, CHILDREN)):
            return False
        from fray._jobs.supervisor.children import tell_children

        return tell_children(self._record, grace)


def members(record: str, root: int | None = None, *, dead: bool = False) -> list[int]:
    """Return the living processes of a job, seen from a process above all of them.

    Args:
        dead: See `process_tree.descendants`.
    """
    if sys.platform == "linux":
        top = os.getpid() if root is None else root
        return process_tree.descendants(top, spare=SUPERVISOR_MODULE, dead=dead)
    return process_tree.with_variable(process_tree.JOB_VARIABLE, record)
