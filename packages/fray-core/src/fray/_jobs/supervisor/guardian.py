"""What the guardian of a supervisor does when that was killed."""

import os
import time

from fray._jobs import process_tree
from fray._jobs.processes.control_group import ControlGroup
from fray._jobs.records.endings import lost, read_status
from fray._jobs.records.files import LOCK, PLAN, SWEEP
from fray._jobs.records.liveness import holder_of
from fray._jobs.records.status_file import write_status
from fray._jobs.supervisor.children import tell_children
from fray._jobs.supervisor.job_tree import members

_GRACE = 10.0  # seconds for the jobs below one whose supervisor was killed
_HOST_GOES = 3.0  # seconds within which all processes of a host that is taken away are killed
_PAUSE = 1.0  # seconds between two tries to write


def clear(record: str, supervisor: int, code: int) -> None:
    """The supervisor was killed, or failed: end the tree, and write so."""
    holder = holder_of(os.path.join(record, LOCK))
    if holder is not None and holder.group is not None:
        ControlGroup(holder.group).kill()

    def left() -> list[int]:
        _reap()
        return members(record, dead=True)

    process_tree.kill_until_gone(left)
    _settle(record, supervisor, code)
    while tell_children(record, _GRACE):
        time.sleep(0.01)
        _reap()
    if os.path.exists(os.path.join(record, SWEEP)):
        from fray._jobs.supervisor.sweep_endings import settle_sweep

        while not settle_sweep(record):
            tell_children(record, _GRACE)
            time.sleep(_PAUSE / 10)
            _reap()


def _settle(record: str, supervisor: int, code: int) -> None:
    info = read_status(record)
    if info is None or info.finished:
        return
    if os.path.exists(
        os.path.join(record, PLAN)
    ):  # it may be resumed: where the host goes, so does this process
        time.sleep(_HOST_GOES)
        os.unlink(os.path.join(record, PLAN))
    how = "was killed" if code < 0 else "failed (see supervisor.log in its record)"
    message = f"its supervisor (process {supervisor}) {how} before the job was finished; its tree was ended"
    while not write_status(record, lost(info, message).to_dict(), final=True):
        time.sleep(_PAUSE)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
