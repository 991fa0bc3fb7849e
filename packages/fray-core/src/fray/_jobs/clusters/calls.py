"""What every cluster does alike."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast, overload

from fray._jobs.clusters.following import wait_for_jobs
from fray._jobs.clusters.listing import JobFilter
from fray._values.checks import invalid
from fray._values.endpoints import Endpoint
from fray._values.errors import JobNotFoundError, UnsupportedError
from fray._values.jobs import JobId, JobInfo, JobRequest, JobStatus, Pruned, SweepId

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster


class ClusterCalls:
    """What all clusters do in the same way: `wait`, lists, and ending what a `with` block launched.

    A backend with its own `launch`, `poll`, `monitor`, `terminate` and `_all_jobs` inherits this. Its
    `launch` calls `_note_launched` with each id.
    """

    _launched: tuple[JobId, ...] = ()
    _shortest_pause, _longest_pause = 0.001, 0.1  # seconds between two polls of `wait`

    def _repr_html_(self) -> str:
        from fray._values.notebooks import jobs_html  # in a notebook alone

        title = f"{type(self).__name__} {getattr(self, 'spec', '')}".rstrip()
        try:
            return jobs_html(title, self.list_jobs())
        except Exception as error:  # noqa: BLE001 - a notebook would show a traceback for an output
            return jobs_html(title, f"its jobs cannot be listed: {type(error).__name__}: {error}")

    def _note_launched(self, job_id: JobId) -> None:
        self._launched = (*self._launched, job_id)

    def _check_predecessors(self, request: JobRequest, *, positions: bool = False) -> None:
        """Refuse to run after a job that is not there.

        Args:
            positions: Whether the request is one of a sweep, which may name another by its position.
        """
        for each in request.after:
            if isinstance(each, str):
                cast("Cluster", self).poll(each)
            elif not positions:
                raise invalid("each of after", "a job id; positions are of launch_many", each)

    def _all_jobs(self, parent: str | None) -> Iterable[JobInfo]:
        """Return the state of every job, in any order; those below a sweep only where it is the parent.

        Args:
            parent: Only those that this job launched, or the members of this sweep.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `_all_jobs`")

    def list_jobs(
        self,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        since: float | None = None,
        parent: str | None = None,
        limit: int | None = None,
        sort: str = "submitted",
    ) -> list[JobInfo]:
        """See `Cluster.list_jobs`."""
        wanted = JobFilter.of(name=name, labels=labels, status=status, since=since, limit=limit, sort=sort)
        return wanted.apply(self._all_jobs(parent))

    def launch_many(
        self,
        requests: Iterable[JobRequest],
        max_parallel: int | None = None,
        *,
        key: str | None = None,
        name: str | None = None,
    ) -> SweepId:
        """See `Cluster.launch_many`; a backend that has sweeps overrides this."""
        raise UnsupportedError(f"{type(self).__name__} has no sweeps: launch the jobs one by one")

    def retry(self, job_id: str, /) -> JobId:
        """See `Cluster.retry`; a backend that keeps what it takes overrides this."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot run job {job_id!r} again: launch it as a new job"
        )

    def restart(self, job_id: str, replica: int | None = None, grace: float = 10.0) -> None:
        """See `Cluster.restart`; a backend that can overrides this."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot start replicas of {job_id!r} again: stop the job and launch it"
        )

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        """See `Cluster.endpoints`; a backend that has them overrides this."""
        raise UnsupportedError(f"{type(self).__name__} has no endpoints: agree on addresses in another way")

    def _register(self, endpoint: Endpoint) -> None:
        """Make an endpoint of this replica known; a backend that has them overrides this."""
        raise UnsupportedError(f"{type(self).__name__} has no endpoints: agree on addresses in another way")

    @staticmethod
    def _check_removal(job_id: JobId) -> None:
        """Refuse to remove a member of a sweep: how the sweep ends depends on all of them."""
        if job_id.sweep is not None:
            raise ValueError(f"job {job_id} is of sweep {job_id.sweep}: it is removed with its sweep")

    def remove(self, job_id: str, force: bool = False) -> None:
        """See `Cluster.remove`; a backend whose records can be removed overrides this."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot remove job {job_id!r}: its records are not its own"
        )

    def prune(self, older_than: float = 0.0, *, dry_run: bool = False) -> Pruned:
        """See `Cluster.prune`; a backend whose records can be removed overrides this."""
        raise UnsupportedError(f"{type(self).__name__} cannot prune its jobs: the records are not its own")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        launched, self._launched = self._launched, ()
        with ExitStack() as ends:  # one that cannot be ended keeps none of the others running
            for job_id in reversed(launched):
                ends.callback(self._terminate_if_known, job_id)

    def _terminate_if_known(self, job_id: JobId) -> None:
        with suppress(JobNotFoundError):  # it was removed, as a job that has ended may be
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
            cluster,
            job_id,
            timeout=timeout,
            raise_on_failure=raise_on_failure,
            stream_logs=stream_logs,
            interval=self._longest_pause,
            shortest=self._shortest_pause,
        )
