"""Servers that are found by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fray._values.checks import check_count, invalid
from fray._values.job_states import JobId

_NAME_LENGTH = 200


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A server that a replica of a job has registered; it ends with the attempt that registered it.

    Args:
        address: Where it listens, e.g. `10.0.0.5:8000`, in whatever form its clients expect.
        metadata: Whatever its clients should know; plain values, fit for JSON.
        attempt: Of the replica, from 1.
        registered_at: Seconds since the epoch.
    """

    name: str
    address: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    job_id: JobId
    replica: int
    attempt: int
    registered_at: float

    def __post_init__(self) -> None:
        check_endpoint_name(self.name)
        if not isinstance(self.address, str) or not self.address:
            raise invalid("address", "a text such as '10.0.0.5:8000'", self.address)
        check_count("replica", self.replica)
        check_count("attempt", self.attempt)
        object.__setattr__(self, "job_id", JobId(self.job_id))
        object.__setattr__(self, "metadata", dict(self.metadata))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {
            "name": self.name,
            "address": self.address,
            "metadata": dict(self.metadata),
            "job_id": str(self.job_id),
            "replica": self.replica,
            "attempt": self.attempt,
            "registered_at": self.registered_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave; keys of a later version are passed over."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


def check_endpoint_name(name: Any) -> None:
    """Refuse a value that is not the name of an endpoint.

    Raises:
        ValueError: It is not printable text of 1 to 200 characters.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _NAME_LENGTH:
        raise invalid("name", f"printable text of 1 to {_NAME_LENGTH} characters", name)
