"""Connections to a scheduler: a program's own, and the one that all sessions of a worker process share."""

import functools
from typing import Any

from distributed import Client, LocalCluster


def connect(address: str | None) -> Any:
    """Return a client of a program's own; without an address, of workers on this machine."""
    return Client(address or local_cluster().scheduler_address, set_as_default=False)


shared = functools.cache(connect)  # nobody closes it


@functools.cache
def local_cluster() -> Any:
    """Start workers on this machine, for as long as this program lives."""
    return LocalCluster(dashboard_address=None)
