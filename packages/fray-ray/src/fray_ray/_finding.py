"""Find a cluster by what users call it, and report plainly where none is found."""

import contextlib
import socket
from collections.abc import Iterator

import ray
import requests
from ray import exceptions as rx

from fray import ClusterUnavailableError, UnsupportedError
from fray_ray._ray_internals.addresses import dashboard_address, head_of_auto

UNREACHED = (ConnectionError, requests.exceptions.RequestException)
"""What is raised when there is no answer, or half of one, or one that is not the dashboard's."""
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
    head = head_of_auto() if address == "auto" else address
    knock(head)
    dashboard = dashboard_address(head, _ANSWERS_WITHIN)
    if dashboard is None:
        raise ConnectionError(
            "its head runs no dashboard, which jobs go through; is ray[default] installed there?"
        )
    if _is_loopback(dashboard) and not _is_here(head):
        raise ConnectionError(
            f"its dashboard, which jobs go through, listens at {dashboard} of its head alone; start the head "
            "with --dashboard-host=0.0.0.0, or launch from there"
        )
    return f"http://{dashboard}"


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine's."""
    host = address.rpartition(":")[0]
    return _is_loopback(address) or host == str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _is_loopback(address: str) -> bool:
    return address.rpartition(":")[0].strip("[]") in ("127.0.0.1", "localhost", "::1")


def knock(address: str) -> None:
    """Raise ConnectionError where nobody listens at `host:port`; Ray would look for most of a minute."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise ConnectionError(f"{address!r} is not host:port")
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
