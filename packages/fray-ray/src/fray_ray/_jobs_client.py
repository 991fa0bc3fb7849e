"""The dashboard's side of a cluster: submit, look, read, stop, upload, over HTTP."""

import contextlib
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fray import ClusterUnavailableError
from fray.cluster import retry_delays, retrying
from fray_ray import _job_kv
from fray_ray._answers import (
    anything,
    empty,
    entry_in,
    flag_at,
    good,
    list_in,
    read_as,
    text_at,
    unless_missing,
    version_in,
)
from fray_ray._finding import UNREACHED, dashboard_of, explained
from fray_ray._job_table import JobEntry
from fray_ray._ray_internals.dashboard import (
    METADATA,
    NODES,
    VERSION,
    DashboardClient,
    RefusedError,
    failed_at_agent,
    found_no_node,
    has_no_agent,
    is_too_large,
    living_addresses,
    log_file,
    package,
    python_of,
    request,
    upload_workspace,
)
from fray_ray._ray_internals.processes import driver_log_name

T = TypeVar("T")
_JOBS = "/api/jobs/"
_SHOWN = 1000  # characters of a failure: the last ones, because Ray's own are traces


class _NoAgentError(Exception):
    """The cluster has no agent for jobs yet."""


class JobsClient:
    """A connection to the dashboard of one cluster; safe to use from several threads.

    Whatever it does raises RefusedError where Ray refuses, and ClusterUnavailableError where no cluster
    answers, or where the answer is not that of a dashboard: the request may have been granted then.

    Args:
        address: `host:port` of the head, `auto`, or the dashboard's URL.
        agent_timeout: Seconds that a cluster which has just started may take to have an agent for jobs.
        reconnect_timeout: Seconds for which a look that finds nobody is repeated.
        answer_timeout: Seconds between the bytes of an answer.
    """

    def __init__(
        self,
        address: str,
        *,
        agent_timeout: float = 30.0,
        reconnect_timeout: float = 5.0,  # a head restarts its dashboard in less
        answer_timeout: float = 60.0,
    ) -> None:
        self.address = address
        self._agent_timeout, self._reconnect_timeout = agent_timeout, reconnect_timeout
        self._nodes: dict[str, str] = {}  # of the processes of jobs
        with explained(address):
            self.url = dashboard_of(address)
            self._jobs = DashboardClient(self.url, answer_timeout)
            self._check_version()

    def _check_version(self) -> None:
        """Raise ConnectionError where the address is not that of a dashboard."""
        try:
            self._ask("GET", VERSION, reading=version_in)
        except RefusedError as error:  # by a server of another kind
            raise ConnectionError(str(error)) from error

    def submit(
        self, entrypoint: str, submission: str, metadata: dict[str, str], runtime_env: dict[str, Any]
    ) -> None:
        """Start a Ray job; a cluster that is still starting is given time.

        Raises:
            ClusterUnavailableError: Ray may have the job, or not.
        """
        job: dict[str, Any] = {"entrypoint": entrypoint, "submission_id": submission, "metadata": metadata}
        deadline = time.monotonic() + self._agent_timeout
        for delay in retry_delays():
            try:
                with explained(self.url):
                    self._submit({**job, "runtime_env": runtime_env})
            except _NoAgentError as error:
                if time.monotonic() + delay > deadline:
                    raise ClusterUnavailableError(
                        f"the cluster at {self.url} had no agent to run jobs within "
                        f"{self._agent_timeout:g} s; is ray[default] installed on its nodes?"
                    ) from error
                time.sleep(delay)
            else:
                return

    def _submit(self, job: dict[str, Any]) -> None:
        answer = request(self._jobs, "POST", _JOBS, json_data=job)
        if answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR and has_no_agent(answer.text):
            raise _NoAgentError(answer.text)
        if answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR and failed_at_agent(answer.text):
            # That is no refusal: Ray may have the job, or take it in a moment.
            raise ConnectionError(f"the agent for jobs failed: {answer.text[-_SHOWN:]}")
        read_as(good(answer), text_at("submission_id"))

    def with_workspace(self, runtime_env: dict[str, Any]) -> dict[str, Any]:
        """Upload the workspace of an environment, and return the environment as the head takes it."""
        found = dict(runtime_env)
        try:
            self._look(lambda: upload_workspace(self._jobs, found))
        except RefusedError as error:
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or is_too_large(str(error)):
                raise ValueError(_too_large(runtime_env)) from error
            raise
        return found

    def entry(self, submission: str) -> JobEntry | None:
        """Return the entry of a job; None where there is none."""
        answer = self._read(f"{_JOBS}{submission}", entry_in)
        return None if answer is None else JobEntry.of(answer)

    def entries(self) -> list[JobEntry]:
        """Return the entries of all jobs."""
        return list(map(JobEntry.of, self._look(lambda: self._ask("GET", _JOBS, reading=list_in))))

    def _read(self, path: str, reading: Callable[[Any], T]) -> T | None:
        """Return what the dashboard says; None where it has nothing. Where it fails it is asked again."""
        return self._look(lambda: unless_missing(lambda: self._ask("GET", path, reading=reading)))

    def _ask(self, method: str, path: str, reading: Callable[[Any], T]) -> T:
        """Return what is read in the JSON of an answer.

        Raises:
            ConnectionError: It is not the answer of a dashboard; another one may be.
            RefusedError: Ray refuses.
        """
        return read_as(good(request(self._jobs, method, path)), reading)

    def log(self, submission: str) -> str:
        """Return what a job has written so far; nothing where its process's node is gone."""
        found = self._log_file(submission, -1)
        if found is not None:
            return found
        with explained(self.url):  # as Ray gives it, which reads no log with other bytes than UTF-8
            # A line that is written in this moment may end within a character, which Ray does not read.
            return retrying(
                lambda: self._log(submission), (*UNREACHED, RuntimeError), self._reconnect_timeout
            )

    def _log(self, submission: str) -> str:
        answer = request(self._jobs, "GET", f"{_JOBS}{submission}/logs")
        if answer.status_code == HTTPStatus.NOT_FOUND or (
            answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR and found_no_node(answer.text)
        ):
            return ""
        return read_as(good(answer), text_at("logs"))

    def last_lines(self, submission: str, lines: int) -> str:
        """Return the last lines that a job has written, so many or more."""
        # One more: the last one may be in the making.
        return self._log_file(submission, lines + 1) or self.log(submission)

    def _log_file(self, submission: str, lines: int) -> str | None:
        """Return the last lines of a job's log, -1 for all; None where its node has none."""
        if submission not in self._nodes and (entry := self.entry(submission)) is not None and entry.node:
            self._nodes[submission] = entry.node
        node = self._nodes.get(submission)
        return self._file(node, driver_log_name(submission), lines) if node else None

    def file_of_node(self, node: str, name: str) -> str:
        """Return a file among the logs of a node; nothing where it, or the node, is not there."""
        return self._file(node, name, -1) or ""

    def _file(self, node: str, name: str, lines: int) -> str | None:
        def ask() -> str | None:
            answer = request(self._jobs, "GET", log_file(node, name, lines))
            if answer.status_code in (HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.NOT_FOUND):
                return None  # so Ray says that it has no such file, or no such node
            return bytes(good(answer).content).decode(errors="replace")

        return self._look(ask)

    def stop(self, submission: str) -> None:
        """Have Ray stop a job's process."""
        with contextlib.suppress(RefusedError):  # it has just ended
            self._look(lambda: self._ask("POST", f"{_JOBS}{submission}/stop", reading=flag_at("stopped")))

    def remove(self, submission: str) -> None:
        """Have Ray forget a job that has ended.

        Raises:
            ValueError: Ray says that it has not.
        """

        def ask() -> bool | None:
            return self._ask("DELETE", f"{_JOBS}{submission}", reading=flag_at("deleted"))

        try:
            self._look(lambda: unless_missing(ask))
        except RefusedError as error:
            raise ValueError(f"Ray does not forget {submission}: {_last_line(error)}") from error

    def upload(self, name: str, data: bytes) -> None:
        """Store bytes in the head's memory."""
        self._look(lambda: empty(request(self._jobs, "PUT", package(name), data=data)))

    def holds(self, name: str) -> bool:
        """Whether the head has something under a name; Ray deletes it ten minutes later."""
        ask = lambda: empty(request(self._jobs, "GET", package(name)))  # noqa: E731
        return self._look(lambda: unless_missing(ask)) is not None

    def forget(self, name: str) -> None:
        """Have the head hold nothing of what was stored; Ray deletes no package over HTTP."""
        with contextlib.suppress(RuntimeError, ClusterUnavailableError):
            self.upload(name, b"-")

    def forget_job(self, submission: str) -> None:
        """Have the scheduler delete all that the head has stored of a job which has ended, or was refused."""
        with contextlib.suppress(RuntimeError, ClusterUnavailableError):
            self.upload(_job_kv.forget_name(submission), b"-")

    def node_addresses(self) -> set[str]:
        """Return the addresses of the living nodes, as far as the dashboard knows them.

        One that has just started knows of no node, and is asked again. Where it knows of none the head's
        address is that in the URL.
        """
        deadline = time.monotonic() + self._reconnect_timeout
        for delay in retry_delays():
            found = living_addresses(self._read(NODES, anything))
            if found or time.monotonic() + delay > deadline:
                break
            time.sleep(delay)
        return found or {urlsplit(self.url).hostname or ""}

    def python(self) -> str | None:
        """Return the version of Python that the nodes have; None where the dashboard does not say it."""
        return python_of(self._read(METADATA, anything))

    def _look(self, act: Callable[[], T]) -> T:
        """Do what may be done twice."""
        with explained(self.url):
            return retrying(act, UNREACHED, self._reconnect_timeout)


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2]


def _too_large(runtime_env: dict[str, Any]) -> str:
    return (
        f"the workspace {runtime_env.get('working_dir')!r} is larger than the 100 MiB (zipped) Ray takes; "
        "name what the job does not need in its .rayignore, or put it where the job can read it"
    )
