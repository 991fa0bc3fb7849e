"""Which jobs are listed, and in which order."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Self

from fray._values.checks import check_count, check_seconds, invalid
from fray._values.job_states import JobInfo, JobStatus

_KEYS: dict[str, Callable[[JobInfo], Any]] = {
    "submitted": lambda info: info.submitted_at or 0.0,
    # What has not finished comes after all that has.
    "finished": lambda info: float("inf") if info.finished_at is None else info.finished_at,
    "name": lambda info: info.name,
    "status": lambda info: list(JobStatus).index(info.status),
}


class JobFilter(NamedTuple):
    """The arguments of `list_jobs`, checked."""

    name: str | None
    labels: Mapping[str, str]
    statuses: frozenset[JobStatus] | None
    since: float | None
    limit: int | None
    sort: str

    @classmethod
    def of(
        cls,
        *,
        name: str | None,
        labels: Mapping[str, str] | None,
        status: JobStatus | str | Iterable[JobStatus | str] | None,
        since: float | None,
        limit: int | None,
        sort: str,
    ) -> Self:
        """Check the arguments of `list_jobs`.

        Raises:
            ValueError: One is wrong.
        """
        if limit is not None:
            check_count("limit", limit)
        if since is not None:
            check_seconds("since", since, zero=True)
        if sort.removeprefix("-") not in _KEYS:
            raise invalid("sort", f"one of {', '.join(_KEYS)}, or one with '-' in front", sort)
        if labels is not None and not isinstance(labels, Mapping):
            raise invalid("labels", "a mapping of texts", labels)
        return cls(name, dict(labels or {}), _statuses(status), since, limit, sort)

    def apply(self, infos: Iterable[JobInfo]) -> list[JobInfo]:
        """Return those that match, in order."""
        # Those of one name, or one status, stay in the order of launch.
        found = sorted(filter(self.fits, infos), key=lambda info: (info.submitted_at or 0.0, _natural(info)))
        found.sort(key=_KEYS[self.sort.removeprefix("-")], reverse=self.sort.startswith("-"))
        return found if self.limit is None else found[max(0, len(found) - self.limit) :]

    def fits(self, info: JobInfo) -> bool:
        """Whether a job matches."""
        return (
            (self.statuses is None or info.status in self.statuses)
            and (self.since is None or (info.submitted_at or 0.0) >= self.since)
            and (self.name is None or any(fnmatchcase(text, self.name) for text in (info.name, info.job_id)))
            and all(
                key in info.labels and fnmatchcase(info.labels[key], value)
                for key, value in self.labels.items()
            )
        )


def _natural(info: JobInfo) -> tuple[str, int, str]:
    """The id, with the position of a member of a sweep as a number."""
    parent, _, leaf = info.job_id.rpartition("/")
    return parent, int(leaf) if leaf.isdecimal() else 0, leaf


def _statuses(given: Any) -> frozenset[JobStatus] | None:
    if given is None:
        return None
    texts = [given] if isinstance(given, str) else list(given)
    for text in texts:
        if text not in tuple(JobStatus):
            raise invalid("status", f"one of {', '.join(JobStatus)}", text)
    return frozenset(map(JobStatus, texts))
