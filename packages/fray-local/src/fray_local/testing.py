"""For tests of training code: take a host away from a job of simulated TPU slices.

The rules of admission are here for tests of their own: which job gets which part of the machine.
"""

import os
import time

from fray import JobStatus, UnsupportedError
from fray.backend import JobRecord, check_count, check_seconds, invalid, post_to_supervisor
from fray.cluster import ExitReason, TaskStatus, poll_delays
from fray_local._cluster.admission import AdmissionFile, Amounts, Claim, admit
from fray_local._cluster.cluster import LocalCluster
from fray_resources import TpuConfig

__all__ = ["AdmissionFile", "Amounts", "Claim", "admit", "preempt"]


def preempt(
    job_id: str, replica: int = 0, *, grace: float = 10.0, cluster: LocalCluster | None = None
) -> int:
    """Preempt one host of a job: SIGTERM now, time to save, then SIGKILL; return the attempt that it ended.

    Waits until the host runs, and returns when the whole gang is down: its peers are stopped when the
    host's process is gone, and while `max_retries_preemption` lasts all start again. However the process
    ends in its time to save, with an exit code of 0 too, it was preempted. Any process of the same user
    may call this.

    Args:
        replica: The host, by its `FRAY_REPLICA_ID`.
        grace: Seconds from SIGTERM to SIGKILL.
        cluster: Where the job is; None for the local cluster of `FRAY_STATE_DIR`.

    Raises:
        JobNotFoundError: There is no such job.
        UnsupportedError: It has no simulated hosts.
        ValueError: It has no such host, or has finished before the host could be preempted.
    """
    check_count("replica", replica)
    check_seconds("grace", grace, zero=True)
    record = (cluster or LocalCluster()).record(job_id)
    _check_host(record, replica)
    noticed = None
    for delay in poll_delays(longest=0.05):
        info = record.info()
        task = info.tasks[replica]
        if noticed is not None and all(_reason(each, noticed) for each in info.tasks):
            if _reason(task, noticed) is ExitReason.PREEMPTED:
                return noticed
            noticed = None  # it ended by itself before it could be notified
        if info.finished:
            raise ValueError(f"job {job_id} is {info.status}: its replica {replica} can not be preempted")
        if noticed is None and task.status is JobStatus.RUNNING:
            told = post_to_supervisor(os.fspath(record.path), f"preempt {replica} {task.attempt} {grace}")
            noticed = task.attempt if told else None
        time.sleep(delay)
    raise AssertionError("unreachable: the delays never end")


def _check_host(record: JobRecord, replica: int) -> None:
    request = record.request()
    if request.get("resources", {}).get("device", {}).get("kind") != TpuConfig.kind:
        raise UnsupportedError(
            f"job {record.job_id} has no host to preempt: a job of TPU slices has, on local?simulate=tpu"
        )
    hosts = len(record.info().tasks)
    if replica >= hosts:
        raise invalid("replica", f"below {hosts}, the number of hosts of {record.job_id}", replica)


def _reason(task: TaskStatus, attempt: int) -> ExitReason | None:
    """Why an attempt of a replica ended; None while it has not."""
    attempts = {each.attempt: each for each in (*task.previous, task)}
    return attempts.get(attempt, task).reason
