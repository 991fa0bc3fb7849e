"""Records as Fray 0.1.0 wrote them, and whether it still runs their jobs. It had two kinds.

of `local`             supervisor.json names the process that supervises; it reads the pipe `control`, as ours
of `DirectoryCluster`  status.json has no version, `carried` is locked by the supervisor, which looks for a
file
                       `stop`; logs are beside these, and a job of a job is beside its parent:
                       ROOT/train-3f9a2c+rollout-1b22d0/
"""

import fcntl
import os
from pathlib import Path

from fray._jobs.process_tree import ProcessIdentity
from fray._jobs.records.files import LOCK
from fray._jobs.records.liveness import Liveness, liveness_of
from fray._jobs.records.status_file import STATUS, read_json

_SUPERVISOR, _CARRIED = "supervisor.json", "carried"
_BELOW = "+"  # between the names of a job and of a job that it launched


def liveness_of_record(record: str) -> Liveness:
    """Return whether the supervisor of a record lives, one of 0.1.0 included. Changes nothing."""
    liveness = liveness_of(os.path.join(record, LOCK))
    if liveness is not Liveness.NOT_STARTED:
        return liveness
    process = os.path.join(record, _SUPERVISOR)
    if os.path.exists(process):
        return _liveness_of_process(process)
    carried = os.path.join(record, _CARRIED)
    return _liveness_of_supervisor(carried) if os.path.exists(carried) else Liveness.NOT_STARTED


def claim_of_0_1(record: str) -> bool:
    """Have no supervisor of 0.1.0 start the job of a record; False where one has come."""
    if "version" in (read_json(os.path.join(record, STATUS)) or {"version": 1}):
        return True  # it is none of its `DirectoryCluster`
    try:
        os.close(os.open(os.path.join(record, _CARRIED), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def name_of_0_1(job_id: str) -> str:
    """Return the name that `DirectoryCluster` of 0.1.0 gave to the record of a job."""
    return job_id.replace("/", _BELOW)


def job_id_of(name: str) -> str:
    """Return the job id of a record's name, in its folder; names of today have no `+`."""
    return name.replace(_BELOW, "/")


def children_of_0_1(record: Path) -> list[str]:
    """Return the names of the records beside one that 0.1.0 made for the jobs below it."""
    try:
        return [name for name in os.listdir(record.parent) if name.startswith(f"{record.name}{_BELOW}")]
    except OSError:
        return []


def _liveness_of_process(path: str) -> Liveness:
    said = read_json(path) or {}
    try:
        lives = ProcessIdentity(said["pid"], said["started"], said["boot"]).running
    except KeyError:
        return Liveness.GONE
    return Liveness.ALIVE if lives else Liveness.GONE


def _liveness_of_supervisor(path: str) -> Liveness:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Liveness.UNKNOWN
    try:
        # A test takes it for a moment; a supervisor takes it before it has this name.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Liveness.ALIVE
    except OSError:  # a file system without locks
        return Liveness.UNKNOWN
    finally:
        os.close(file)
    return Liveness.GONE
