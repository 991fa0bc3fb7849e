"""What the guardian of a supervisor does when that has ended."""

import os
import sys
import time
from collections.abc import Callable

from fray._jobs import process_tree
from fray._jobs.control_group import ControlGroup
from fray._jobs.control_pipe import post_to_supervisor
from fray._jobs.endings import lost, read_status
from fray._jobs.liveness import Liveness, holder_of, liveness_of
from fray._jobs.plan import Keep
from fray._jobs.status_file import read_json, write_status

CHILDREN, LOCK, KEEP = "jobs", "lock", "keep.json"
_GRACE = 10.0  # seconds for the jobs below one whose supervisor was killed
_PAUSE = 1.0  # seconds between two tries to write


def clear(record: str, supervisor: int, code: int) -> None:
    """The supervisor was killed, or failed: end the tree, and write so."""
    from fray._jobs.supervisor import members

    holder = holder_of(os.path.join(record, LOCK))
    if holder is not None and holder.group is not None:
        ControlGroup(holder.group).kill()
    process_tree.kill_until_gone(lambda: members(record))
    _settle(record, supervisor, code)
    while tell_children(record, _GRACE):
        time.sleep(0.01)
        _reap()


def _settle(record: str, supervisor: int, code: int) -> None:
    info = read_status(record)
    if info is None or info.finished:
        return
    how = "was killed" if code < 0 else "failed (see supervisor.log in its record)"
    message = f"its supervisor (process {supervisor}) {how} before the job was finished; its tree was ended"
    while not write_status(record, lost(info, message).to_dict(), final=True):
        time.sleep(_PAUSE)


def tidy(record: str) -> None:
    """Nothing of the job is left: remove its control group, and records that are too many or too old."""
    holder = holder_of(os.path.join(record, LOCK))
    if holder is not None and holder.group is not None:
        ControlGroup(holder.group).remove()
    kept = read_json(os.path.join(record, KEEP))
    if kept is not None:
        from fray._jobs.pruning import prune

        _try(lambda: prune(os.path.dirname(record), Keep(**kept)))
    from fray._jobs.record_index import renew

    _try(lambda: renew(os.path.dirname(record)))


def _try(act: Callable[[], None]) -> None:
    """Do what need not be done now; that it failed is said in the job's supervisor.log."""
    try:
        act()
    except OSError as error:
        print(f"{error}", file=sys.stderr)


def tell_children(record: str, grace: float) -> bool:
    """Ask the jobs that a job launched to stop; whether any runs."""
    below, running = os.path.join(record, CHILDREN), False
    for name in os.listdir(below) if os.path.isdir(below) else ():
        child = os.path.join(below, name)
        if not name.startswith(".") and liveness_of(os.path.join(child, LOCK)) is Liveness.ALIVE:
            post_to_supervisor(child, f"stop {grace}")
            running = True
    return running


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
