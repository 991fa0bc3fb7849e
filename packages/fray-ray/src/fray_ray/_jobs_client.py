"""The dashboard's side of a cluster: submit, look, read, stop, upload, over HTTP."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests

from fray import ClusterUnavailableError
from fray.cluster import retry_delays, retrying
from fray_ray import _job_kv
from fray_ray._finding import UNREACHED, dashboard_of, explained
from fray_ray._job_table import JobEntry
from fray_ray._ray_internals.dashboard import (
    METADATA,
    NODES,
    DashboardClient,
    living_addresses,
    log_file,
    package,
    python_of,
    request,
    upload_workspace,
)
from fray_ray._ray_internals.processes import driver_log_name

T = TypeVar("T")
_NO_AGENT = "No available agent"
_NOT_FOUND = "Request failed with status code 404"
_NO_ANSWER = "aiohttp.client_exceptions"  # in the trace of a dashboard that asked a node in vain
_TOO_LARGE = ("Maximum request body size", "exceeds the maximum size", "status code 413")
_SERVERS_FAULT = 500  # the least status code of an answer that may be another one in a moment


class JobsClient:
    """A connection to the dashboard of one cluster; safe to use from several threads.

    Whatever it does raises ClusterUnavailableError where no cluster answers.

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
        self._nodes: dict[str, str] = {}  # of the drivers of jobs
        with explained(address):
            self.url = dashboard_of(address)
            self._jobs = DashboardClient(self.url, answer_timeout)

    def submit(
        self, entrypoint: str, submission: str, metadata: dict[str, str], runtime_env: dict[str, Any]
    ) -> None:
        """Start a Ray job; a cluster that is still starting is given time."""
        job: dict[str, Any] = {"entrypoint": entrypoint, "submission_id": submission, "metadata": metadata}
        deadline = time.monotonic() + self._agent_timeout
        for delay in retry_delays():
            try:
                with explained(self.url):
                    self._jobs.submit_job(**job, runtime_env=runtime_env)
            except RuntimeError as error:
                if _NO_AGENT not in str(error):
                    raise
                if time.monotonic() + delay > deadline:
                    raise ClusterUnavailableError(
                        f"the cluster at {self.url} had no agent to run jobs within "
                        f"{self._agent_timeout:g} s; is ray[default] installed on its nodes?"
                    ) from error
                time.sleep(delay)
            else:
                return

    def with_workspace(self, runtime_env: dict[str, Any]) -> dict[str, Any]:
        """Upload the workspace of an environment, and return the environment as the head takes it."""
        found = dict(runtime_env)
        try:
            with explained(self.url):
                upload_workspace(self._jobs, found)
        except RuntimeError as error:
            if any(words in str(error) for words in _TOO_LARGE):
                raise ValueError(_too_large(runtime_env)) from error
            raise
        return found

    def entry(self, submission: str) -> JobEntry | None:
        """Return the entry of a job; None where there is none."""
        answer = self._read(f"/api/jobs/{submission}")
        return None if answer is None else JobEntry.of(answer)

    def entries(self) -> list[JobEntry]:
        """Return the entries of all jobs."""
        answer = self._read("/api/jobs/")
        if not isinstance(answer, list):
            raise RuntimeError(f"the dashboard at {self.url} answered no list of jobs: {str(answer)[:200]!r}")
        return list(map(JobEntry.of, answer))

    def _read(self, path: str) -> Any:
        """Return what the dashboard says; None where it has nothing. Where it fails it is asked again."""

        def ask() -> Any:
            answer = self._get(path)
            try:
                return None if answer is None else answer.json()
            except ValueError as error:  # cut off, or a page of a proxy
                raise ConnectionError(f"GET {self.url}{path} answered no JSON: {error}") from error

        return self._look(ask)

    def _get(self, path: str) -> Any:
        """Return a good answer; None where nothing is there."""
        answer = request(self._jobs, "GET", path)
        if answer.status_code == requests.codes.not_found:
            return None
        if answer.status_code != requests.codes.ok:
            words = f"GET {self.url}{path} answered {answer.status_code}: {answer.text[-1000:]}"
            raise ConnectionError(words) if answer.status_code >= _SERVERS_FAULT else RuntimeError(words)
        return answer

    def log(self, submission: str) -> str:
        """Return what a job has written so far; nothing where its driver's node is gone."""
        found = self._log_file(submission, -1)
        if found is not None:
            return found
        with explained(self.url):  # as Ray gives it, which reads no log with other bytes than UTF-8
            # A line that is written in this moment may end within a character, which Ray does not read.
            return retrying(
                lambda: self._log(submission), (*UNREACHED, RuntimeError), self._reconnect_timeout
            )

    def _log(self, submission: str) -> str:
        try:
            return str(self._jobs.get_job_logs(submission))
        except RuntimeError as error:
            if _NO_ANSWER in str(error) or _is_unknown(error):
                return ""
            raise

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
        answer = self._look(lambda: request(self._jobs, "GET", log_file(node, name, lines)))
        if answer.status_code != requests.codes.ok:
            return None
        return bytes(answer.content).decode(errors="replace")

    def stop(self, submission: str) -> None:
        """Have Ray stop a job's driver."""
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._look(lambda: self._jobs.stop_job(submission))

    def remove(self, submission: str) -> None:
        """Have Ray forget a job that has ended.

        Raises:
            ValueError: Ray says that it has not.
        """
        try:
            self._look(lambda: self._jobs.delete_job(submission))
        except RuntimeError as error:
            if not _is_unknown(error):
                raise ValueError(f"Ray does not forget {submission}: {_last_line(error)}") from error

    def upload(self, name: str, data: bytes) -> None:
        """Store bytes in the head's memory."""
        path = package(name)
        answer = self._look(lambda: request(self._jobs, "PUT", path, data=data))
        if answer.status_code != requests.codes.ok:
            raise RuntimeError(f"PUT {self.url}{path} answered {answer.status_code}: {answer.text[-1000:]}")

    def holds(self, name: str) -> bool:
        """Whether the head has something under a name."""
        return self._look(lambda: self._get(package(name)) is not None)

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
            found = living_addresses(self._read(NODES))
            if found or time.monotonic() + delay > deadline:
                break
            time.sleep(delay)
        return found or {urlsplit(self.url).hostname or ""}

    def python(self) -> str | None:
        """Return the version of Python that the nodes have; None where the dashboard does not say it."""
        return python_of(self._read(METADATA))

    def _look(self, act: Callable[[], T]) -> T:
        """Do what may be done twice."""
        with explained(self.url):
            return retrying(act, UNREACHED, self._reconnect_timeout)


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2]


def _is_unknown(error: RuntimeError) -> bool:
    """Whether Ray says that there is no such job; what it says may hold the job's id, and its log."""
    return str(error).startswith(_NOT_FOUND)


def _too_large(runtime_env: dict[str, Any]) -> str:
    return (
        f"the workspace {runtime_env.get('working_dir')!r} is larger than the 100 MiB (zipped) Ray takes; "
        "name what the job does not need in its .rayignore, or put it where the job can read it"
    )
