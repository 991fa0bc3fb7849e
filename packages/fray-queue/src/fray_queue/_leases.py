"""Leases as a store returns them."""

from collections.abc import Sequence
from typing import TypeVar

from fray import LeaseExpiredError
from fray.backend import with_end
from fray.queue import Lease

T = TypeVar("T")


def extended(leases: Sequence[Lease[T]], ends: Sequence[float | None]) -> list[Lease[T] | LeaseExpiredError]:
    """Return leases with their new ends; where there is none, the error that the lease is lost."""
    return [
        LeaseExpiredError(lease.lease_id) if until is None else with_end(lease, until)
        for lease, until in zip(leases, ends, strict=True)
    ]
