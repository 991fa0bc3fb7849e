"""The contract of a cluster: launch jobs, look at them, follow them, stop them.

A backend is any object of this shape. `ClusterBase` derives it from five primitives, `DirectoryCluster`
from one; a backend that implements it from scratch calls `wait_for_jobs` and `follow_logs`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, overload, runtime_checkable

from fray._values.endpoints import Endpoint
from fray._values.jobs import JobId, JobInfo, JobRequest, JobStatus, Pruned, SweepId


class LogStream(Iterator[str]):
    """The lines of a job, live, from the first to the last; the iteration ends when the job has ended.

    It also has the fields of the job's final `JobInfo`, because older code reads them
    (`monitor(job_id).status`). Reading one first follows the log to its end.

    Args:
        lines: What iterating gives.
        info: Gives the final `JobInfo`; it may block until there is one.
    """

    def __init__(self, lines: Iterator[str], info: Callable[[], JobInfo]) -> None:
        self._lines, self._info = lines, info

    def __next__(self) -> str:
        return next(self._lines)

    @property
    def info(self) -> JobInfo:
        """The job's final state; waits for the end of the job where it has not come yet."""
        return self._info()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not (name in JobInfo.__dataclass_fields__ or hasattr(JobInfo, name)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        for _ in self._lines:
            continue
        return getattr(self.info, name)


@runtime_checkable
class Cluster(Protocol):
    """Somewhere to run jobs.

    Other processes may open the same cluster at the same time and see, follow and stop the same jobs. A
    cluster is named by a spec, which jobs find in `FRAY_CLUSTER_SPEC`. A job that is launched from inside a
    job is its child (`fray.cluster.parent_job`). For implementers: start a job inside
    `fray.cluster.launching`, which yields variables for its processes, so that listeners receive the job's
    events.
    """

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        """Validate a request, start the job and return at once.

        What takes time (building an environment, waiting for room) happens in the job, which is
        pending meanwhile; if it fails there the job fails, with the reason.

        Args:
            key: Names this launch: a second one with the same key, by whatever process, starts nothing and
                returns the first one's id, for as long as that job is remembered. So a launch whose answer
                was lost can be repeated. The keys of a job that launches are its own.

        Raises:
            ValueError: The request is wrong. Nothing was started.
            UnsupportedError: This cluster cannot do it; the message names what can. Nothing was started.
        """
        ...

    def poll(self, job_id: str, /) -> JobInfo:
        """Return the state of a job as it is now, with all that is known of it; never blocks for long.

        A job whose supervision is gone reads failed, with the reason, not running for ever.

        Raises:
            JobNotFoundError: No job has this id.
        """
        ...

    def launch_many(
        self,
        requests: Iterable[JobRequest],
        max_parallel: int | None = None,
        *,
        key: str | None = None,
        name: str | None = None,
    ) -> SweepId:
        """Launch many jobs as one: a sweep. All of them are accepted, or none.

        Every call that takes the id of a job takes that of a sweep; its members are jobs too, of the ids
        `SWEEP/0`, `SWEEP/1`, and so on. The `after` of a request may name others by position. A member finds
        `FRAY_SWEEP_ID` and `FRAY_SWEEP_INDEX`. The sweep continues when its launcher ends.

        Args:
            max_parallel: How many members may run at the same time; None for as many as there is room for.
            key: See `launch`.
            name: Of the sweep; None for what the names of the requests have in common.

        Raises:
            ValueError: A request is wrong, or requests run after each other in a circle. Nothing was started.
            UnsupportedError: This cluster has no sweeps, or cannot do one of the requests.
        """
        ...

    def retry(self, job_id: str, /) -> JobId:
        """Run again what did not succeed, under the same id: a job, or the failed and stopped of a sweep.

        Earlier attempts stay in `TaskStatus.previous`, with their logs.

        Raises:
            JobNotFoundError: No job has this id.
            ValueError: It has not finished, or it has succeeded.
            UnsupportedError: This cluster does not keep what it takes, or did not for this job.
        """
        ...

    def restart(self, job_id: str, replica: int | None = None, grace: float = 10.0) -> None:
        """End a replica of a job that runs, and start it again; returns when that was requested.

        It counts against no budget. The replicas of a gang are started again together.

        Args:
            replica: None for every one that runs.
            grace: Seconds from SIGTERM to SIGKILL.

        Raises:
            JobNotFoundError: No job has this id.
            ValueError: The job, or the replica, does not run.
            UnsupportedError: This cluster cannot, or it is a sweep: restart its members.
        """
        ...

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        """Return the servers whose names begin with `prefix`, those that registered first before others.

        Several replicas may have registered one name.

        Args:
            everywhere: Also those of jobs that are not of this program's family: the jobs that one program
                launched, and all below them. None means True outside of jobs only.

        Raises:
            UnsupportedError: This cluster has no endpoints.
        """
        ...

    def monitor(
        self,
        job_id: str,
        /,
        *,
        replica: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        follow: bool = True,
    ) -> LogStream:
        """Follow the lines that a job writes, from the first, whenever it started; no line is lost.

        Lines of jobs with more than one replica start with `[replica-N] `, and come in turns: one replica
        that writes much does not hold back the others. A line above 64 MiB comes in pieces.

        Args:
            replica: Only this one's lines, without the prefix.
            tail: Only the last so many of the lines written until now, a fair share of each replica's, and
                what comes after.
            since: Only what was written from this time on, in seconds since the epoch, or a little before.
            grep: Only lines in which this regular expression is found; the prefix is not looked at.
            follow: False ends the stream with what has been written until now.

        Raises:
            JobNotFoundError: No job has this id.
            ValueError: The job has no such replica, or `grep` is not a regular expression.
            UnsupportedError: `since` is given, and the cluster does not know when a line was written.
        """
        ...

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
        """Wait until a job, or each of several, is finished.

        Args:
            timeout: Seconds to wait; the jobs continue after that.
            raise_on_failure: Raise as soon as one of them failed or was stopped.
            stream_logs: Write their lines to stdout meanwhile.

        Raises:
            JobFailedError: With `raise_on_failure`; `info` is that job's final state.
            JobNotFoundError: No job has this id.
            TimeoutError: `timeout` passed first.
        """
        ...

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """Stop a job in whatever phase it is, and return when no process of it is left.

        Every process of its tree gets SIGTERM, then, `grace` seconds later, SIGKILL; the jobs that it
        launched are stopped too. It ends as `stopped`. A finished job is left as it is.

        Raises:
            JobNotFoundError: No job has this id.
        """
        ...

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
        """Return the jobs that are remembered, in the order of launch: the state of each, and its labels.

        What else does not change (the command, resources, where the logs are) is in what `poll` returns.
        A sweep is one of them; what is below it is listed by `parent`.

        Args:
            name: Only those whose name or id fits this pattern, as a shell has it.
            labels: Only those that have all of these; a value may be a pattern.
            status: Only those that have it, or one of several.
            since: Only those that were launched at this time or later, in seconds since the epoch.
            parent: Only those that this job launched, or the members of this sweep.
            limit: Only the last so many.
            sort: By what they are sorted: "submitted", "finished", "name" or "status"; "-" in front turns
                the order round.

        Raises:
            JobNotFoundError: `parent` is the id of no job.
            ValueError: An argument is wrong.
        """
        ...

    def remove(self, job_id: str, force: bool = False) -> None:
        """Remove a finished job, and those that it launched: the records, the logs and the files of each.

        Args:
            force: Also one that is not known to have ended, because its supervisor was last seen on a host
                that cannot be asked. What still runs there is not stopped.

        Raises:
            JobNotFoundError: No job has this id.
            ValueError: It has not ended; `terminate` ends it. Or it is a member of a sweep.
            UnsupportedError: This cluster's records cannot be removed.
        """
        ...

    def prune(self, older_than: float = 0.0, *, dry_run: bool = False) -> Pruned:
        """Remove every job that ended longer ago than so many seconds, and environments that no job uses.

        Args:
            dry_run: Remove nothing, and return what would be removed.

        Raises:
            UnsupportedError: This cluster's records cannot be removed.
        """
        ...
