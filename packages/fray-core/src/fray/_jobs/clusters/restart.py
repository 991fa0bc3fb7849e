"""Request that the supervisor of a running job ends replicas and starts them again."""

import os

from fray._jobs.records.control_pipe import file_restart, post_to_supervisor
from fray._jobs.records.liveness import Liveness
from fray._jobs.records.record import JobRecord
from fray._values.errors import ClusterUnavailableError, UnsupportedError
from fray._values.job_states import JobInfo, JobStatus, TaskStatus


def restart_replicas(record: JobRecord, replica: int | None, grace: float) -> None:
    """See `Cluster.restart`."""
    info = record.info()
    if info.is_sweep:
        raise UnsupportedError(f"{info.job_id} is a sweep: restart its members, e.g. {info.job_id}/0")
    for task in tasks_to_restart(info, replica):
        message = f"restart {task.replica} {task.attempt} {grace}"
        supervised = record.of_replica(task.replica)
        path = os.fspath(supervised.path)
        if post_to_supervisor(path, message):
            continue
        if supervised.liveness() not in (Liveness.ALIVE, Liveness.UNKNOWN):
            raise ClusterUnavailableError(
                f"the supervisor of job {info.job_id} ended at this moment, before it read the request; "
                "poll the job, and retry it if it has not succeeded"
            )
        file_restart(path, message)  # it runs on another host


def tasks_to_restart(info: JobInfo, replica: int | None) -> list[TaskStatus]:
    """Return the replicas that are to be started again; None for all that run.

    Raises:
        ValueError: None runs.
    """
    if info.finished:
        raise ValueError(f"job {info.job_id} has ended ({info.status}): retry runs it again")
    if replica is not None and not 0 <= replica < len(info.tasks):
        raise ValueError(f"replica must be 0 to {len(info.tasks) - 1}, got {replica}")
    wanted = info.tasks if replica is None else [info.tasks[replica]]
    running = [task for task in wanted if task.status is JobStatus.RUNNING]
    if not running:
        what = "no replica" if replica is None else f"replica {replica}"
        state = "" if replica is None else f" (it is {info.tasks[replica].status})"
        raise ValueError(f"{what} of job {info.job_id} runs{state}: there is nothing to start again")
    return running
