"""Write the record of a job that is to be started: complete, or not at all."""

import os
from pathlib import Path

from fray._jobs.plans.plan import JobPlan
from fray._jobs.plans.planning import PAYLOAD
from fray._jobs.plans.snapshots import SweepCopies
from fray._jobs.plans.sweep_plan import TURN, SweepPlan
from fray._jobs.plans.values import Keep
from fray._jobs.records import control_pipe
from fray._jobs.records.files import LOCK, LOGS, PLAN, REQUEST, SUPERVISOR_LOG
from fray._jobs.records.kept_plans import withheld, write_kept
from fray._jobs.records.liveness import NO_LOCKS, SupervisorLock
from fray._jobs.records.on_exit import write_on_exit
from fray._jobs.records.packed_plans import packed_plan
from fray._jobs.records.pruning import write_keep
from fray._jobs.records.replica_records import plan_of_replica
from fray._jobs.records.status_file import VERSION, replace_file, reserve_room, write_json, write_status
from fray._values.errors import FrayError


def write_member(folder: Path, plan: JobPlan, copies: SweepCopies) -> None:
    """Write the record of a member of a sweep, complete but for a supervisor."""
    folder.mkdir(mode=0o700, parents=True)
    if plan.snapshot_of is not None:
        copies.link(Path(plan.snapshot_of), folder / Path(plan.workspace).name)
    take_lock(folder).close()
    write_record(folder, plan._replace(described={**plan.described, "pending_reason": TURN}))
    replace_file(os.fspath(folder / PLAN), packed_plan(withheld(plan)))
    # Kept from the start: where the machine stops, so do all supervisors, and nobody else has the plan.
    write_kept(os.fspath(folder), plan)


def write_replica(folder: Path, plan: JobPlan, record: Path) -> None:
    """Write the record of a replica that is to have a supervisor of its own.

    Args:
        plan: Of the job.
        record: Where that of the job will be.
    """
    folder.mkdir(mode=0o700, parents=True)
    take_lock(folder).close()
    own = plan_of_replica(plan, os.fspath(record), int(folder.name))
    write_record(folder, own)
    replace_file(os.fspath(folder / PLAN), packed_plan(own))


def write_record(draft: Path, plan: JobPlan | SweepPlan) -> None:
    """Write the record of a job that is to be started."""
    path = os.fspath(draft)
    (draft / LOGS).mkdir(mode=0o700)
    control_pipe.create(path)
    reserve_room(path, plan.replicas)
    write_json(os.fspath(draft / REQUEST), {"version": VERSION, **plan.shown})
    if plan.keep is not None and plan.keep != Keep():
        write_keep(path, plan.keep)
    if isinstance(plan, JobPlan) and plan.on_exit is not None:
        write_on_exit(path, plan)
    if plan.payload is not None:
        replace_file(os.fspath(draft / PAYLOAD), plan.payload)
    if not write_status(path, plan.described, final=False):
        raise OSError(
            f"the status of {plan.job_id} cannot be written to {path}: the disk is full or read-only"
        )


def take_lock(draft: Path) -> SupervisorLock:
    """Take the lock of a record that is being made, and make the log of its future holder."""
    replace_file(os.fspath(draft / SUPERVISOR_LOG), b"")
    # Under its name it is seen taken or not at all: a process that prunes meanwhile deletes a draft without a
    # holder.
    taken = draft / f"{LOCK}.new"
    try:
        lock = SupervisorLock.acquire(os.fspath(taken))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise FrayError(
            f"no job can be launched in {draft.parent}: its file system has no locks ({error.strerror}), by "
            "which it is known whether a job runs; choose another folder, e.g. by FRAY_STATE_DIR"
        ) from error
    assert lock is not None, "a draft is its launcher's own"
    try:
        os.rename(taken, draft / LOCK)
    except OSError:
        lock.close()
        raise
    try:
        lock.reserve()
    except BaseException:
        lock.close()
        raise
    return lock
