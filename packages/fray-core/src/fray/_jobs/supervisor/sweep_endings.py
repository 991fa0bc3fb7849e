"""The end of a sweep, and of members that never ran, where nobody coordinates it any more."""

import os
from dataclasses import replace
from pathlib import Path

from fray._jobs.records.endings import read_status
from fray._jobs.records.files import CHILDREN
from fray._jobs.records.record import JobRecord
from fray._jobs.records.settling import progress_of
from fray._jobs.records.status_file import write_status
from fray._jobs.supervisor.stopping import settle_stopped
from fray._values.job_states import JobId


def settle_unstarted(record: str) -> bool:
    """Write that a member was stopped before it started; False where a supervisor has come for it."""
    info = read_status(record)
    job_id = JobId(os.path.basename(record)) if info is None else info.job_id
    return settle_stopped(JobRecord(Path(record), job_id))


def settle_sweep(record: str) -> bool:
    """After the end of a coordinator that was killed: members that have not started never do.

    Returns:
        Whether every member has ended.
    """
    info = read_status(record)
    if info is None or not info.is_sweep:
        return True
    members = os.path.join(record, CHILDREN)
    for name in os.listdir(members):
        if name.isdecimal():
            settle_unstarted(os.path.join(members, name))
    now = replace(info, progress=progress_of(JobRecord(Path(record), info.job_id)))
    if info != now:
        write_status(record, now.to_dict(), final=info.finished)
    return not {"pending", "running"} & (now.progress or {}).keys()
