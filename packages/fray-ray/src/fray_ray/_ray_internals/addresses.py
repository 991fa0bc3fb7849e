"""Where a cluster's head and its dashboard are."""

import contextlib
from typing import Any

from ray._private import ray_constants, worker
from ray._private.services import canonicalize_bootstrap_address, canonicalize_bootstrap_address_or_die
from ray._raylet import GcsClient  # type: ignore[attr-defined]


def current_cluster() -> Any:
    """Return the id of the cluster that this process is in, None where it is in none. Read in Ray 2.60.

    No two clusters have the same one.
    """
    node = worker.global_worker.node
    return None if node is None else node.cluster_id


def head_of_auto() -> str:
    """Return `host:port` of the head that `auto` means here. Read in Ray 2.60.

    Raises:
        ConnectionError: No cluster runs on this machine, and no variable names one.
    """
    return str(canonicalize_bootstrap_address_or_die("auto"))


def as_ray_says(address: str) -> str | None:
    """Return an address of a head as Ray itself spells it, without loopback; None where it is not an address.

    Read in Ray 2.60.
    """
    with contextlib.suppress(ValueError):
        found: str | None = canonicalize_bootstrap_address(address)
        return found
    return None


def dashboard_address(head: str, timeout: float) -> str | None:
    """Return `host:port` of the dashboard, as the head has it; None where it runs none. Read in Ray 2.60.

    Args:
        timeout: Seconds within which the head answers.
    """
    key, namespace = ray_constants.DASHBOARD_ADDRESS.encode(), ray_constants.KV_NAMESPACE_DASHBOARD
    found: bytes | None = GcsClient(address=head).internal_kv_get(key, namespace, timeout=timeout)
    return None if found is None else found.decode()
