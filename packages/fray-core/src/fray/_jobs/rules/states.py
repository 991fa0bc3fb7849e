"""The state of a job as its supervisor keeps it and writes it down; others read it as `JobInfo`.

Named tuples: `dataclasses` would cost a job twice the start of a bare interpreter. A test holds the names of
the fields against those of `JobInfo` and `TaskStatus`.
"""

from __future__ import annotations

from fray._values.job_words import ExitReason, JobStatus
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NO_PORTS: Mapping[str, int] = {}


class ReplicaState(NamedTuple):
    """The state of one replica: of its latest attempt, with the earlier ones in `previous`."""

    replica: int
    status: JobStatus = JobStatus.PENDING
    attempt: int = 0
    exit_code: int | None = None
    reason: ExitReason | None = None
    error_message: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    peak_memory: int | None = None
    cpu_time: float | None = None
    ports: Mapping[str, int] = NO_PORTS
    previous: tuple[ReplicaState, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReplicaState:
        """Read what `to_dict` gave."""
        known = {name: data[name] for name in cls._fields if name in data}
        reason = known.get("reason")
        return cls(**known)._replace(
            status=JobStatus(known["status"]),
            reason=None if reason is None else ExitReason(reason),
            previous=tuple(cls.from_dict(each) for each in known.get("previous", ())),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {**self._asdict(), "previous": [state.to_dict() for state in self.previous]}


class JobState(NamedTuple):
    """What changes of a job while it is supervised."""

    status: JobStatus
    tasks: tuple[ReplicaState, ...]
    error_message: str | None = None
    pending_reason: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {**self._asdict(), "tasks": [state.to_dict() for state in self.tasks]}
