"""What Slurm's states and reasons mean for a job, in the words of its status."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from fray.cluster import ExitReason, JobStatus
from fray_slurm._allocation import HELD_RECORD, LOST_SUPERVISOR, MISSING_FOLDER
from fray_slurm._ending import TAKEN_AWAY
from fray_slurm._readings import SlurmJob

WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT", "LAUNCH_FAILED"),
    }
)

_END = 2000  # bytes of a batch step's output that are read from its end
_NOT_STARTED = (126, 127)  # exit codes of a shell that could not start a program
_NO_OUTPUT = 53  # the "signal" of a batch step whose --output its node could not open

# Reasons of pending jobs, as squeue prints them.
_WAITS = {
    "": "waiting for Slurm to look at it",
    "BeginTime": "Slurm holds it until its begin time; after a requeue that is two minutes",
    "Dependency": "waiting for jobs that it depends on",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held by its user (scontrol release)",
    "JobHoldMaxRequeue": "held by Slurm, which has requeued it too often (scontrol release)",
    "launch failed requeued held": "held by Slurm, because its node could not start it (scontrol release)",
    "Priority": "waiting behind jobs of higher priority",
    "Resources": "waiting for nodes",
    "ReqNodeNotAvail": "waiting for nodes that are down, drained or reserved",
    "Licenses": "waiting for licenses",
    "Cleaning": "its last run is being cleaned up",
    "QOSMaxJobsPerUserLimit": "waiting for other jobs of its user to end (a limit of the QOS)",
}
# Those under which it stays pending for ever, unless the job or the cluster is changed.
_NEVER = {
    "BadConstraints": "no node can ever satisfy its constraints",
    "DependencyNeverSatisfied": "a job that it depends on did not succeed",
    "InvalidAccount": "its account does not exist",
    "InvalidQOS": "its QOS does not exist",
    "PartitionConfig": "the partition's limits or nodes do not allow it",
    "PartitionNodeLimit": "it asks for more nodes than the partition has or allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "AssocMaxCpuPerJobLimit": "it asks for more CPUs than its account may have for a job",
    "QOSMaxCpuPerJobLimit": "it asks for more CPUs than its QOS allows for a job",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than its QOS allows",
}


@dataclass(frozen=True)
class End:
    """How Slurm ended a job whose supervisor could not write it itself."""

    status: JobStatus
    reason: ExitReason
    message: str

    def with_log(self, path: Path) -> "End":
        """Add the last line of the batch step's output, which says why it failed."""
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _END))
                words = file.read().decode(errors="replace").strip()
        except OSError:
            return self
        if not words:
            return self
        return replace(self, message=f"{self.message}; {os.fspath(path)} ends: {words.splitlines()[-1]}")


def pending_reason(job: SlurmJob) -> str:
    """Return what a waiting job waits for; Slurm's own reason is in parentheses."""
    name = job.reason.partition(",")[0].strip()
    own = f" ({job.reason})" if job.reason else ""
    if name in _NEVER:
        return f"will never start: {_NEVER[name]}{own}"
    return f"{_WAITS.get(name, 'waiting in the queue')}{own}"


def end_of(job: SlurmJob) -> End | None:
    """Describe how a job ended; None while it has not."""
    if job.state not in ENDED:
        return None
    failed, lost = JobStatus.FAILED, ExitReason.LOST
    name = f"Slurm job {job.job_id}"
    why = f" ({job.reason})" if job.reason else ""
    if job.state == "CANCELLED":
        if job.reason in _NEVER:
            unmet = job.reason == "DependencyNeverSatisfied"
            reason = ExitReason.DEPENDENCY_FAILED if unmet else ExitReason.COULD_NOT_START
            return End(failed, reason, f"{name} was cancelled: {_NEVER[job.reason]}{why}")
        who = f" by user {job.by}" if job.by else ""
        return End(JobStatus.STOPPED, ExitReason.STOPPED, f"{name} was cancelled{who}, not through Fray")
    if job.state == "FAILED":
        return _failure(job, name, why)
    reason, text = {
        "BOOT_FAIL": (lost, "its node did not boot"),
        "COMPLETED": (lost, "its batch step ended before the job's last status was written"),
        "DEADLINE": (ExitReason.TIMED_OUT, "reached its deadline"),
        "LAUNCH_FAILED": (ExitReason.COULD_NOT_START, "could not be launched"),
        "OUT_OF_MEMORY": (
            ExitReason.OUT_OF_MEMORY,
            "was ended because it used more memory than it asked for",
        ),
        "REVOKED": (lost, "was taken over by another cluster of the federation"),
        "TIMEOUT": (ExitReason.TIMED_OUT, "reached the time limit of its allocation"),
        **{state: (ExitReason(value), words) for state, (value, words) in TAKEN_AWAY.items()},
    }[job.state]
    return End(failed, reason, f"{name} {text}{why}")


def is_of_step(job: SlurmJob) -> bool:
    """Whether a job failed by its batch step, not by something that Slurm could not do for it."""
    return job.reason not in _NEVER


def never_submitted() -> End:
    """Describe a job whose launcher was killed after it had made the record, and before Slurm had the job."""
    message = "the process that launched it ended before Slurm had taken the job; retry runs it"
    return End(JobStatus.FAILED, ExitReason.LOST, message)


def forgotten(job_id: str, *, started: bool) -> End:
    """Describe what is known of a job that neither the queue nor the accounting has any more: little."""
    if "_" in job_id and not started:
        # Slurm keeps no trace of a task that was cancelled before it started.
        message = f"Slurm no longer knows task {job_id}, which had not started: it was cancelled"
        return End(JobStatus.STOPPED, ExitReason.STOPPED, message)
    if not started:
        message = (
            f"Slurm no longer knows job {job_id}, which had not started: slurmctld has lost it (it ended "
            "before it had saved its state), or it was cancelled, and the queue has forgotten that "
            "(MinJobAge); retry runs it"
        )
        return End(JobStatus.FAILED, ExitReason.LOST, message)
    message = (
        f"Slurm no longer knows job {job_id}: it left the queue (MinJobAge), this cluster keeps no "
        "accounting of it, and the job's last status was never written"
    )
    return End(JobStatus.FAILED, ExitReason.LOST, message)


def _failure(job: SlurmJob, name: str, why: str) -> End:
    failed = JobStatus.FAILED
    if job.reason in _NEVER:
        return End(failed, ExitReason.COULD_NOT_START, f"{name} failed: {_NEVER[job.reason]}{why}")
    if job.exit_code == LOST_SUPERVISOR:
        return End(failed, ExitReason.LOST, f"the supervisor of {name} was killed")
    if job.exit_code == HELD_RECORD:
        text = (
            f"{name}: another process holds the job's record, such as the supervisor of a run before on a "
            "host that has failed; the file system keeps its lock until that host is up again: retry it then"
        )
        return End(failed, ExitReason.LOST, text)
    if job.exit_code == MISSING_FOLDER:
        text = f"{name}: the node does not see the folder of records, which all nodes must share"
        return End(failed, ExitReason.COULD_NOT_START, text)
    if job.signal == _NO_OUTPUT:
        text = (
            f"{name}: the node could not write into the folder of records, which all nodes must share, and "
            "where the job must be able to write"
        )
        return End(failed, ExitReason.COULD_NOT_START, text)
    if job.signal:  # Slurm's own reason is then JobLaunchFailure, which it was not
        return End(failed, ExitReason.LOST, f"the supervisor of {name} was ended by signal {job.signal}")
    if job.exit_code in _NOT_STARTED:
        text = f"{name}: its node could not start Fray's interpreter, which must be there by the same path"
        return End(failed, ExitReason.COULD_NOT_START, f"{text}{why}")
    code = "an unknown code" if job.exit_code is None else f"code {job.exit_code}"
    return End(failed, ExitReason.LOST, f"the supervisor of {name} exited with {code}{why}")
