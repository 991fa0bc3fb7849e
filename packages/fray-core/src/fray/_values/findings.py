"""What a check of an installation found: what `fray doctor` prints."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Health(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and something will not, or less well."""
    ERROR = "error"
    """It does not work."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check.

    Args:
        check: What was looked at: `state directory`.
        found: What is the case, in one line.
        advice: What to do about it; empty where nothing need be done.
    """

    check: str
    health: Health
    found: str
    advice: str = ""

    def to_dict(self) -> Mapping[str, str]:
        """Return plain values, fit for JSON."""
        return {
            "check": self.check,
            "health": str(self.health),
            "found": self.found,
            "advice": self.advice,
        }
