"""What a replica used at one moment."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageSample:
    """What an attempt of a replica had used at one moment; samples of a long attempt are further apart.

    Args:
        replica: Its number, from 0.
        attempt: From 1.
        time: Seconds since the epoch.
        memory: The most that its processes held at one time since the sample before, in bytes.
        cpu_time: Seconds of CPU since its start.
    """

    replica: int
    attempt: int
    time: float
    memory: int
    cpu_time: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        return {name: getattr(self, name) for name in ("replica", "attempt", "time", "memory", "cpu_time")}
