"""The dashboard's HTTP, beyond the methods of `JobSubmissionClient`."""

from typing import Any
from urllib.parse import urlencode

import ray
from ray.job_submission import JobSubmissionClient

_CONNECTS_WITHIN = 5.0  # seconds
NODES = "/nodes?view=summary"
"""The path of what the dashboard knows of nodes; `living_addresses` reads it. Read in Ray 2.60."""
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
        self._check_connection_and_version("2.0")

    def _do_request(self, method: str, endpoint: str, **more: Any) -> Any:
        return super()._do_request(method, endpoint, **{"timeout": self._timeouts, **more})


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
