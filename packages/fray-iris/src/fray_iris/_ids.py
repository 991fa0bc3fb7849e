"""The names of jobs and tasks: `train-3f9a2c/rollout-1b22d0` is `/ada/train-3f9a2c/rollout-1b22d0` in Iris.

A user of Iris is the first part of every name there. Whose jobs a cluster shows is said by its `user`.
"""

import hashlib
from typing import NamedTuple

from fray.cluster import JobId

_KEY_DIGITS = 10  # before the last part, which is as long as in every id


class IrisTask(NamedTuple):
    """One task of an Iris job, and which attempt at it, both from 0."""

    job: str
    replica: int
    attempt: int | None = None

    @classmethod
    def parse(cls, wire: str) -> "IrisTask":
        """Read `/ada/train/0`, or `/ada/train/0:2` with an attempt.

        Raises:
            ValueError: The text names no task.
        """
        task, colon, attempt = wire.partition(":")
        job, slash, index = task.rpartition("/")
        if not (job.startswith("/") and slash and index.isdecimal()) or (colon and not attempt.isdecimal()):
            raise ValueError(f"an Iris task is named /USER/JOB/INDEX[:ATTEMPT], got {wire!r}")
        return cls(job, int(index), int(attempt) if colon else None)

    @property
    def name(self) -> str:
        """What Iris calls the task, without the attempt."""
        return f"{self.job}/{self.replica}"

    @property
    def log_key(self) -> str:
        """What Iris calls the log of the attempt."""
        return f"{self.name}:{self.attempt or 0}"


def iris_name(user: str, job_id: str) -> str:
    """Return what Iris calls a job."""
    return f"/{user}/{job_id}"


def job_id_of(user: str, name: str) -> JobId | None:
    """Return the id of a job that Iris calls so; None where it is another user's."""
    prefix = f"/{user}/"
    return JobId(name[len(prefix) :]) if name.startswith(prefix) and len(name) > len(prefix) else None


def is_job_id(job_id: str) -> bool:
    """Whether Iris could have a job of this id: no part of it is empty, or a step of a path."""
    parts = job_id.split("/")
    return bool(job_id) and all(part.strip() and part not in (".", "..") for part in parts)


def keyed_id(key: str, parent: str | None) -> JobId:
    """Return the id of the job that a launch with this key makes: the same for every launch with it.

    Iris refuses a second job of one name, so the key is held by the controller, and by nothing of ours.
    """
    made = JobId.new(key)
    slug, _, last = made.rpartition("-")
    # Keys that begin alike may share a slug: what tells them apart is long enough for very many of them.
    digest = hashlib.sha256(key.encode()).hexdigest()
    leaf = f"{slug}-{digest[:_KEY_DIGITS]}-{digest[_KEY_DIGITS:][: len(last)]}"
    return JobId(f"{parent}/{leaf}" if parent else leaf)


def root_of(job_id: str) -> str:
    """Return the id of the job at the top of a family, by which Iris names the family's endpoints."""
    return job_id.partition("/")[0]
