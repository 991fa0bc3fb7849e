"""Stop the jobs that a job launched: `python -m fray_slurm._children RECORD ID`, of a supervisor, of its job.

The batch step of a job runs this when it has ended. Its supervisor stops the jobs that run on its own host;
others run on other nodes, or wait in Slurm's queue. Where a job's own program has ended it, they go on.
"""

import contextlib
import sys

from fray import FrayError, JobNotFoundError
from fray.backend import folder_of_records, map_in_threads
from fray.cluster import Cluster, ExitReason, JobInfo, JobStatus
from fray_slurm._cluster import SlurmCluster

_GRACE = 10.0  # seconds, as where the supervisor of a job on this machine was killed
_AT_ONCE = 16  # jobs that are stopped side by side
_FROM_OUTSIDE = (ExitReason.TIMED_OUT, ExitReason.LOST, ExitReason.PREEMPTED)


def stop_children(cluster: Cluster, job_id: str) -> None:
    """Return when the jobs below one are gone; at once where its own program has ended it."""
    if not _was_ended(cluster.poll(job_id)):
        return

    def stop(child: str) -> None:
        try:
            with contextlib.suppress(JobNotFoundError):  # removed meanwhile
                cluster.terminate(child, _GRACE)
        except (FrayError, OSError) as error:
            sys.stderr.write(f"fray: job {child} could not be stopped: {error}\n")

    running = [each.job_id for each in cluster.list_jobs(parent=job_id) if not each.finished]
    map_in_threads(stop, running, _AT_ONCE, "fray-terminate")


def _was_ended(info: JobInfo) -> bool:
    """Whether a job was stopped, was out of time, or lost its supervisor or its nodes."""
    from_outside = any(task.reason in _FROM_OUTSIDE for task in info.tasks)
    return info.finished and (from_outside or info.status is JobStatus.STOPPED)


if __name__ == "__main__":
    stop_children(SlurmCluster(root=folder_of_records(*sys.argv[1:])), sys.argv[2])
