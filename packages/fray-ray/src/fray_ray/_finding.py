"""Find a cluster by what users call it, and say plainly where none is found."""

import contextlib
import socket
from collections.abc import Iterator

import requests
from ray import exceptions as rx
from ray._private import ray_constants
from ray._private.services import canonicalize_bootstrap_address_or_die, get_node_ip_address
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from fray import ClusterUnavailableError, UnsupportedError

UNREACHED = (ConnectionError, requests.exceptions.ConnectionError, requests.exceptions.Timeout)
"""What is raised where nobody answers."""
_ANSWERS_WITHIN = 5.0  # seconds


def dashboard_of(address: str) -> str:
    """Return the URL of a cluster's dashboard.

    Args:
        address: That URL itself, `host:port` of the head, or `auto`.
    """
    if address.startswith(("http://", "https://")):
        return address.rstrip("/")
    if address.startswith("ray://"):
        raise UnsupportedError(
            f"Ray Client ({address}) knows nothing of jobs: give the head's address, ray?address=HOST:6379, "
            "or its dashboard's, ray?address=http://HOST:8265"
        )
    # What names a head is taken as it is: Ray would turn a loopback address into the machine's own.
    head = canonicalize_bootstrap_address_or_die(address) if address == "auto" else address
    knock(head)
    key, namespace = ray_constants.DASHBOARD_ADDRESS.encode(), ray_constants.KV_NAMESPACE_DASHBOARD
    found = GcsClient(address=head).internal_kv_get(key, namespace, timeout=_ANSWERS_WITHIN)
    if found is None:
        raise ConnectionError(
            "its head runs no dashboard, which jobs go through; is ray[default] installed there?"
        )
    dashboard: str = found.decode()
    if _is_loopback(dashboard) and not _is_here(head):
        raise ConnectionError(
            f"its dashboard, which jobs go through, listens at {dashboard} of its head alone; start the head "
            "with --dashboard-host=0.0.0.0, or launch from there"
        )
    return f"http://{dashboard}"


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine's."""
    host = address.rpartition(":")[0]
    return _is_loopback(address) or host == str(get_node_ip_address())  # type: ignore[no-untyped-call]


def _is_loopback(address: str) -> bool:
    return address.rpartition(":")[0].strip("[]") in ("127.0.0.1", "localhost", "::1")


def knock(address: str) -> None:
    """Raise ConnectionError where nobody listens at `host:port`; Ray would look for most of a minute."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise ConnectionError(f"{address!r} is no host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN).close()
    except OSError as error:
        raise ConnectionError(f"{address}: {error.strerror or error}") from error


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Turn what Ray raises where it finds no cluster, or is not let in, into one error with advice."""
    try:
        yield
    except rx.AuthenticationError as error:
        raise ClusterUnavailableError(
            f"the Ray cluster at {address!r} asks for its token: before Python starts, set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what `ray get-auth-token` prints there"
        ) from error
    except (*UNREACHED, rx.RpcError) as error:
        if isinstance(error, ClusterUnavailableError):
            raise
        raise ClusterUnavailableError(
            f"no Ray cluster answers at {address!r}: {error}; is it running, and is the address its head's "
            "(host:port) or its dashboard's (http://host:8265)?"
        ) from error
