"""The dashboard's HTTP, beyond the methods of `JobSubmissionClient`."""

import re
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import urlencode

import ray
from ray.job_submission import JobSubmissionClient

from fray import FrayError

_CONNECTS_WITHIN = 5.0  # seconds
_SHOWN = 1000  # characters of a refusal: the last ones, because Ray's own are traces
_SHOWN_OF_OTHERS = 200  # characters of any other answer: the first ones, because it may be a page
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_BY_AGENT = re.compile(r"Request failed with status code (\d+)")  # the first; more may be in what follows
_TOO_LARGE = ("Maximum request body size", "exceeds the maximum size")
NODES = "/nodes?view=summary"
"""The path of what the dashboard knows of nodes; `living_addresses` reads it. Read in Ray 2.60."""
VERSION = "/api/version"
"""The path of what a dashboard says of itself. Read in Ray 2.60."""
METADATA = "/api/v0/cluster_metadata"
"""The path of what the dashboard knows of its cluster; `python_of` reads it. Read in Ray 2.60."""


class DashboardClient(JobSubmissionClient):
    """Ray's own client, which by itself waits for ever for a head that hangs. Read in Ray 2.60.

    Args:
        url: Where the dashboard is. Ray's own class prefers what is in its variables, such as RAY_ADDRESS.
        answers_within: Seconds between the bytes of an answer.
    """

    def __init__(self, url: str, answers_within: float = 60.0) -> None:
        self._timeouts = _CONNECTS_WITHIN, answers_within
        self._client_ray_version = ray.__version__
        super(JobSubmissionClient, self).__init__(url)  # its own __init__ looks into the variables first

    def _do_request(self, method: str, endpoint: str, **more: Any) -> Any:
        try:
            return super()._do_request(method, endpoint, **{"timeout": self._timeouts, **more})
        except UnicodeError as error:  # of `requests`, in the address that a redirect names
            raise ConnectionError(f"{method} {endpoint} is redirected to no address: {error}") from error

    def _raise_error(self, r: Any) -> NoReturn:
        raise failure_of(r)


class RefusedError(FrayError, RuntimeError):
    """Ray refuses a request, and would refuse it again. Read in Ray 2.60.

    Args:
        status: That of the answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)  # both, or it cannot be unpickled
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


def failure_of(answer: Any) -> RefusedError | ConnectionError:
    """Return the error that an answer is which is not the one that was asked for. Read in Ray 2.60.

    It is a ConnectionError where the answer may be another one in a moment: of a proxy, or of a dashboard
    that cannot answer now. A job's agent refuses with 4xx and 500; the dashboard passes both on as 500.
    """
    status, text = answer.status_code, answer.text
    asked = f"{answer.request.method} {answer.request.url} answered {status}"
    by_agent = status == HTTPStatus.INTERNAL_SERVER_ERROR and (
        "Request failed with status code" in text or is_too_large(text)
    )
    if by_agent or (HTTPStatus.BAD_REQUEST <= status < 500 and status not in _PASSING):
        return RefusedError(f"{asked}: {text[-_SHOWN:]}", status)
    return ConnectionError(f"{asked}: {text[:_SHOWN_OF_OTHERS]}")


def is_too_large(text: str) -> bool:
    """Whether Ray says of an upload that it is too large. Read in Ray 2.60."""
    return any(words in text for words in _TOO_LARGE)


def has_no_agent(text: str) -> bool:
    """Whether a dashboard says that its cluster has no agent for jobs yet. Read in Ray 2.60."""
    return "No available agent" in text


def failed_at_agent(text: str) -> bool:
    """Whether a dashboard passes on that a job's agent failed with 5xx. Read in Ray 2.60.

    The agent answers 400 to a job that Ray does not take, and 500 where the head's store is away, say. To a
    DELETE it answers 500 where it refuses, too.
    """
    found = _BY_AGENT.search(text)
    return found is not None and found[1].startswith("5")


def is_known(error: Exception) -> bool:
    """Whether Ray refuses a job because its table has one of this id. Read in Ray 2.60."""
    return "already exists" in str(error)


def found_no_node(text: str) -> bool:
    """Whether the trace of a dashboard says that it asked a node in vain. Read in Ray 2.60."""
    return "aiohttp.client_exceptions" in text


def request(client: DashboardClient, method: str, path: str, **more: Any) -> Any:
    """Send a request to the dashboard, with the headers and the token of its client. Read in Ray 2.60.

    Args:
        more: As `requests.request` takes it.
    """
    return client._do_request(method, path, **more)


def upload_workspace(client: DashboardClient, runtime_env: dict[str, Any]) -> None:
    """Upload the folder that an environment names, and write into that where the head has it.

    Read in Ray 2.60.
    """
    client._upload_working_dir_if_needed(runtime_env)


def package(name: str) -> str:
    """Return the path of what the head keeps in its memory under a name: bytes, by PUT. Read in Ray 2.60."""
    return f"/api/packages/gcs/{name}"


def log_file(node: str, name: str, lines: int = -1) -> str:
    """Return the path of the last lines of a file among the logs of a node; -1 for all. Read in Ray 2.60."""
    return f"/api/v0/logs/file?{urlencode({'node_id': node, 'filename': name, 'lines': lines})}"


def living_addresses(summary: Any) -> set[str]:
    """Return the addresses of living nodes from a dashboard's summary of nodes. Read in Ray 2.60.

    A node that joined or left a moment ago stands in it without an address, or without a raylet: such
    an entry names no node that one could be on, so it is passed over.
    """
    nodes = _mapping(_mapping(summary).get("data")).get("summary")
    addresses = set()
    for node in map(_mapping, nodes if isinstance(nodes, list) else []):
        raylet = _mapping(node.get("raylet"))
        address = node.get("ip") or raylet.get("nodeManagerAddress")
        if isinstance(address, str) and raylet.get("state", "ALIVE") == "ALIVE":
            addresses.add(address)
    return addresses


def python_of(metadata: Any) -> str | None:
    """Return the version of Python of a cluster, whose nodes must have the same; None where it is not said.

    Read in Ray 2.60.
    """
    found = _mapping(_mapping(metadata).get("data")).get("pythonVersion")
    return found if isinstance(found, str) else None


def _mapping(value: Any) -> dict[str, Any]:
    """Return an answer's part that should be an object; empty where the dashboard sent something else."""
    return value if isinstance(value, dict) else {}
