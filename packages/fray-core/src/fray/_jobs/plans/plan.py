"""The plan of a job's supervisor: a request, checked, as what has to be run.

Imports little: a job's supervisor starts with it. What makes plans of requests is in `planning`; what a plan
may bring along that has a life of its own is in `parts`.
"""

from __future__ import annotations

from fray._jobs.plans.values import NO_VALUES
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fray._jobs.plans.parts import Admission, HostEnd, Preparation
    from fray._jobs.plans.values import Grant, Keep
    from fray._jobs.ranks import GangLayout


class JobPlan(NamedTuple):
    """What runs a job: the same command `replicas` times, each with its number in `FRAY_REPLICA_ID`.

    Args:
        command: What one replica runs, with the interpreter that launched it for `python`.
        environ: All variables of a replica except those of its own. Some are secrets, so never show a plan.
        secrets: Values among them that are shown nowhere; see `fray.cluster.last_lines`.
        gang: The shape of the gang; None for independent replicas.
        payload: What the command reads: from its standard input, unless it is passed a file. Kept with the
            record of a job that has one.
        shown: What may be shown of the request, fit for JSON.
        described: The `JobInfo` that the job begins with, fit for JSON; the supervisor overwrites it.
        keep: Which records are kept when this job has ended.
        granted: What `admission` granted before the supervisor started.
        gpus: The GPUs of a job that reserves none.
        gpus_per_replica: How many of the job's GPUs each replica sees.
        timeout: Seconds that an attempt may run.
        log_limit: Bytes that are kept of what an attempt writes.
        memory: Bytes of memory that each replica requested.
        measured_elsewhere: Whether the command stands for a program on another host, and writes a
            `UsageHistory` of that. It starts with SIGTERM and SIGINT blocked, and
            SIGUSR1 and SIGUSR2 ignored.
        memory_limit: Bytes that the whole job may have, where its control group can be limited.
        snapshot_of: The folder to copy to `workspace`, which is then a folder of the record.
        commit: The commit of the workspace at launch, if that is not a copy; None also if it is in no
            repository.
        again: Whether the job has ended before: what did not succeed runs again, with a number of its own.
        attempts_before: If `again`: how many attempts each replica has had; they count against no budget.
        apart: Whether each replica has a supervisor of its own, wherever there is room for it; see
            `replica_records`.
        first_replica: The number of the first replica of those that this supervisor has.
        withheld: The variables of the request whose values are in no file; None for a plan that has all.
        after: The ids of the jobs that must have succeeded before anything of it starts.
        ports: The names of the ports that each replica has.
        address: Where others reach the host of the replicas; None for its name.
        on_exit: A shell command that runs once when the job has ended.
        host_end: Finds out why the supervisor got SIGTERM. Such a job may be resumed: the same
            command runs again, on another host, when the first was killed before the job had ended.
    """

    job_id: str
    command: tuple[str, ...]
    environ: dict[str, str]
    secrets: tuple[str, ...]
    workspace: str
    replicas: int
    gang: GangLayout | None
    max_retries_failure: int
    max_retries_preemption: int
    timeout: float | None
    submitted_at: float
    payload: bytes | None = None
    shown: Mapping[str, Any] = NO_VALUES
    described: Mapping[str, Any] = NO_VALUES
    preparation: Preparation | None = None
    admission: Admission | None = None
    keep: Keep | None = None
    granted: Grant | None = None
    gpus: tuple[str, ...] = ()
    gpus_per_replica: int = 0
    log_limit: int | None = None
    memory: int | None = None
    memory_limit: int | None = None
    snapshot_of: str | None = None
    commit: str | None = None
    warnings: tuple[str, ...] = ()
    host_end: HostEnd | None = None
    after: tuple[str, ...] = ()
    on_exit: str | None = None
    ports: tuple[str, ...] = ()
    address: str | None = None
    again: bool = False
    attempts_before: tuple[int, ...] = ()
    withheld: tuple[str, ...] | None = None
    apart: bool = False
    first_replica: int = 0
    measured_elsewhere: bool = False

    @property
    def numbers(self) -> range:
        """The numbers of the replicas that this supervisor has."""
        return range(self.first_replica, self.first_replica + self.replicas)

    @property
    def kept(self) -> bool:
        """Whether the plan may be in the record: of what ran before, and of a member of a sweep."""
        return self.again or self.job_id.rpartition("/")[2].isdecimal()

    def __repr__(self) -> str:
        return f"<JobPlan of {self.job_id}>"  # its variables are secret
