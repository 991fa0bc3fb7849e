"""The dashboard's side of a cluster: submit, look, read, stop, upload, over HTTP."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import requests
from ray.dashboard.utils import ray_address_to_api_server_url
from ray.job_submission import JobSubmissionClient

from fray import UnsupportedError
from fray.cluster import retry_delays

T = TypeVar("T")
_NO_AGENT = "No available agent"
_TOO_LARGE = ("Maximum request body size", "exceeds the maximum size", "status code 413")
_PATIENCE = 30.0  # seconds that a cluster which has just started may take to have an agent for jobs


class JobsClient:
    """A connection to the dashboard of one cluster; safe to use from several threads.

    Args:
        address: `host:port` of the head, `auto`, or the dashboard's URL.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.url = _reach(address, lambda: _dashboard(address))
        self._jobs = _reach(self.url, lambda: _without_ray_address(lambda: JobSubmissionClient(self.url)))

    def submit(
        self, entrypoint: str, submission: str, metadata: dict[str, str], runtime_env: dict[str, Any]
    ) -> None:
        """Start a Ray job; a cluster that is still starting is given time."""
        job: dict[str, Any] = {"entrypoint": entrypoint, "submission_id": submission, "metadata": metadata}
        deadline = time.monotonic() + _PATIENCE
        for delay in retry_delays():
            try:
                self._call(lambda: self._jobs.submit_job(**job, runtime_env=runtime_env))
            except RuntimeError as error:
                if any(words in str(error) for words in _TOO_LARGE):
                    raise ValueError(_too_large(runtime_env)) from error
                if _NO_AGENT not in str(error):
                    raise
                if time.monotonic() + delay > deadline:
                    raise ConnectionError(
                        f"the cluster at {self.url} had no agent to run jobs within {_PATIENCE:g} s; "
                        "is ray[default] installed on its nodes?"
                    ) from error
                time.sleep(delay)
            else:
                return

    def details(self, submission: str) -> Any:
        """Return the entry of a job; None where there is none."""
        try:
            return self._call(lambda: self._jobs.get_job_info(submission))
        except RuntimeError as error:
            if "404" in str(error) or "does not exist" in str(error):
                return None
            raise

    def all_details(self) -> list[Any]:
        """Return the entries of all jobs."""
        return list(self._call(self._jobs.list_jobs))

    def log(self, submission: str) -> str:
        """Return what a job has written so far; nothing where it cannot be read (yet)."""
        with contextlib.suppress(RuntimeError):  # the driver has not started, or its node is gone
            return str(self._call(lambda: self._jobs.get_job_logs(submission)))
        return ""

    def stop(self, submission: str) -> None:
        """Have Ray stop a job's driver."""
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._call(lambda: self._jobs.stop_job(submission))

    def upload(self, name: str, data: bytes) -> None:
        """Store bytes in the head's memory."""
        self._answer("PUT", f"/api/packages/gcs/{name}", data=data)

    def node_addresses(self) -> set[str]:
        """Return the addresses of the living nodes."""
        nodes = self._answer("GET", "/nodes?view=summary").json()["data"]["summary"]
        return {str(node["ip"]) for node in nodes if node["raylet"].get("state", "ALIVE") == "ALIVE"}

    def _answer(self, method: str, path: str, **more: Any) -> Any:
        answer = self._call(lambda: self._jobs._do_request(method, path, **more))
        if answer.status_code != requests.codes.ok:
            raise RuntimeError(
                f"{method} {self.url}{path} answered {answer.status_code}: {answer.text[-1000:]}"
            )
        return answer

    def _call(self, act: Callable[[], T]) -> T:
        return _reach(self.url, act)


def _too_large(runtime_env: dict[str, Any]) -> str:
    return (
        f"the workspace {runtime_env.get('working_dir')!r} is larger than the 100 MiB (zipped) Ray takes; "
        "name what the job does not need in its .rayignore, or put it where the job can read it"
    )


def _dashboard(address: str) -> str:
    if address.startswith(("http://", "https://")):
        return address.rstrip("/")
    if address.startswith("ray://"):
        raise UnsupportedError(
            f"jobs go through the dashboard, not through Ray Client ({address}); give address=http://HOST:8265"
        )
    return str(ray_address_to_api_server_url(address))


def _reach(address: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except (ConnectionError, requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address!r}: {error}; is it running, and is the address its head's "
            "(host:port) or its dashboard's (http://host:8265)?"
        ) from error


def _without_ray_address(act: Callable[[], T]) -> T:
    """Connect where we are told to: Ray's client prefers what is in its variable."""
    given = os.environ.pop("RAY_ADDRESS", None)
    try:
        return act()
    finally:
        if given is not None:
            os.environ["RAY_ADDRESS"] = given
