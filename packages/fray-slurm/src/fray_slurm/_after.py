"""Jobs that run after others: Slurm's `--dependency` where it can know, the record where it cannot."""

from collections.abc import Callable, Iterable

from fray.cluster import ExitReason, JobInfo, JobStatus
from fray_slurm._states import End

_PHRASES = {JobStatus.FAILED: "failed", JobStatus.STOPPED: "was stopped"}


def dependency(numbers: Iterable[str]) -> str:
    """Return the option by which a job starts when Slurm's jobs of these numbers have succeeded."""
    return ":".join(["afterok", *numbers])


def failed_before(after: Iterable[str], look: Callable[[str], JobInfo | None]) -> End | None:
    """Record that a job will never start because one that it was to run after has not succeeded.

    Args:
        look: Returns the state of a job; None where there is none any more.
    """
    for job_id in after:
        info = look(job_id)
        if info is None:
            how = "was removed before it was known to have succeeded"
        elif info.finished and info.status is not JobStatus.SUCCEEDED:
            how = _PHRASES[info.status]
        else:
            continue
        return not_started(f"it was to run after job {job_id}, which {how}")
    return None


def not_started(message: str) -> End:
    """Return the end of a job that was never submitted, or never started, for that reason."""
    return End(JobStatus.FAILED, ExitReason.DEPENDENCY_FAILED, message)
