"""The first steps of a job's supervisor: until it has its plan and its lock.

It is the child of its guardian (`boot`), which ends the tree when the supervisor is killed. Where the
guardian is killed the supervisor continues without it.
"""

from __future__ import annotations

import gc
import os
import sys

from fray._jobs import process_tree
from fray._jobs.plans.plan import JobPlan
from fray._jobs.process_tree import boot_id, identify
from fray._jobs.processes.control_group import ControlGroup
from fray._jobs.processes.memory_group import JobGroups, MemoryGroup
from fray._jobs.records.files import PLAN
from fray._jobs.records.liveness import Holder, SupervisorLock, this_host
from fray._jobs.records.packed_plans import plan_in, remove_plan
from fray._jobs.records.status_file import STATUS, read_json
from fray._jobs.supervisor.supervisor import Supervisor
from fray._values.job_words import JobStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._jobs.plans.sweep_plan import SweepPlan


def supervise(record: str, lock_file: int, group_name: str, *, handed: bool) -> None:
    """Supervise the job of a record, unless another process has settled it.

    Args:
        lock_file: Where its lock is, to be held.
        group_name: What the control group of its tree is called.
        handed: Whether the launcher took the lock and holds the plan.
    """
    process_tree.become_subreaper()
    lock = SupervisorLock(lock_file)
    if handed:
        plan = _read_plan(record)
    elif not lock.take():
        return  # it is being stopped before it could start
    else:
        written = read_json(os.path.join(record, STATUS))
        finished = written is not None and JobStatus(written["status"]).finished
        plan = None if finished else _read_plan(record)
    if plan is None:
        return  # or its launcher died before it could say anything
    gc.freeze()  # imported modules are not garbage, and a collection takes 2 ms
    gc.enable()
    group = ControlGroup.create(group_name)
    _say(lock, group)
    if not isinstance(plan, JobPlan):  # it is of a sweep
        from fray._jobs.supervisor.sweep_coordinator import Coordinator

        Coordinator(record, plan, lock).run()
        return
    plan, groups = _limited(plan, group, group_name)
    Supervisor(record, plan, lock, groups).run()


def _limited(plan: JobPlan, group: ControlGroup | None, name: str) -> tuple[JobPlan, JobGroups]:
    """Limit the memory of a job whose cluster enforces it; return its groups."""
    limit = plan.memory_limit
    if limit is None or (group is not None and group.limit_memory(limit)):
        return plan, JobGroups(group)
    memory = MemoryGroup.create(name)
    if memory is not None and memory.limit_memory(limit):
        return plan, JobGroups(group, memory)
    warning = "its memory is not limited: no control group of the job takes a limit"
    return plan._replace(warnings=(*plan.warnings, warning), memory_limit=None), JobGroups(group)


def _say(lock: SupervisorLock, group: ControlGroup | None) -> None:
    """Write the supervisor's identity, for a process that must end it when it does not answer."""
    own, guardian = identify(os.getpid()), identify(os.getppid())
    lock.say(
        Holder(
            host=this_host(),
            boot=boot_id(),
            pid=own.pid if own else 0,
            started=own.started if own else 0.0,
            guardian=guardian.pid if guardian else 0,
            guardian_started=guardian.started if guardian else 0.0,
            group=group.path if group else None,
        )
    )


def _read_plan(record: str) -> JobPlan | SweepPlan | None:
    """The plan, from the record or, where it is not there, from the launcher."""
    try:
        with open(os.path.join(record, PLAN), "rb") as file:
            plan = plan_in(file)
    except FileNotFoundError:
        # Not up to its end: a child that the launching program forked meanwhile has the pipe open, too.
        plan = plan_in(sys.stdin.buffer)
    if plan is None or plan.host_end is None:
        remove_plan(record)
    elif isinstance(plan, JobPlan) and plan.withheld is None and not plan.max_retries_preemption:
        from fray._jobs.records.kept_plans import withhold

        withhold(record, plan)  # it is not resumed
    if plan is not None and plan.withheld is not None:
        from fray._jobs.records.kept_plans import restored

        plan = restored(plan, os.environ)
    return plan
