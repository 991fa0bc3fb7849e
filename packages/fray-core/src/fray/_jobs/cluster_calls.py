"""What every cluster does alike."""

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast, overload

from fray._jobs.following import wait_for_jobs
from fray._values.errors import UnsupportedError
from fray._values.jobs import JobId, JobInfo, Pruned

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster


class ClusterCalls:
    """What every cluster does alike: `wait`, and the end of what was launched in a `with` block.

    A backend that brings `launch`, `poll`, `monitor`, `terminate` and `list_jobs` of its own inherits this;
    `launch` notes each id by `_note_launched`.
    """

    _launched: tuple[JobId, ...] = ()

    def _note_launched(self, job_id: JobId) -> None:
        self._launched = (*self._launched, job_id)

    def remove(self, job_id: str, force: bool = False) -> None:
        """See `Cluster.remove`; a backend whose records can be removed overrides this."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot remove job {job_id!r}: its records are not its own"
        )

    def prune(self, older_than: float = 0.0) -> Pruned:
        """See `Cluster.prune`; a backend whose records can be removed overrides this."""
        raise UnsupportedError(f"{type(self).__name__} cannot prune its jobs: the records are not its own")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        launched, self._launched = self._launched, ()
        for job_id in launched:
            cast("Cluster", self).terminate(job_id)

    @overload
    def wait(  # type: ignore[overload-overlap]  # a str is an iterable of str too; the first fits first
        self,
        job_id: str,
        /,
        *,
        timeout: float | None = None,
        raise_on_failure: bool = False,
        stream_logs: bool = False,
    ) -> JobInfo: ...
    @overload
    def wait(
        self,
        job_id: Iterable[str],
        /,
        *,
        timeout: float | None = None,
        raise_on_failure: bool = False,
        stream_logs: bool = False,
    ) -> list[JobInfo]: ...
    def wait(
        self,
        job_id: str | Iterable[str],
        /,
        *,
        timeout: float | None = None,
        raise_on_failure: bool = False,
        stream_logs: bool = False,
    ) -> JobInfo | list[JobInfo]:
        """See `Cluster.wait`."""
        cluster = cast("Cluster", self)
        return wait_for_jobs(
            cluster, job_id, timeout=timeout, raise_on_failure=raise_on_failure, stream_logs=stream_logs
        )
