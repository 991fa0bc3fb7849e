"""The one shape of an error about a field: its name, what it takes, what it got."""

from typing import Any


def invalid(field: str, allowed: str, value: Any) -> ValueError:
    """Make the error; `allowed` completes "FIELD must be ..."."""
    return ValueError(f"{field} must be {allowed}, got {value!r}")


def check_count(field: str, value: Any, least: int = 0) -> None:
    """Refuse what is no whole number of `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise invalid(field, f"a whole number of {least} or more", value)


def check_seconds(field: str, value: Any, *, zero: bool = False) -> None:
    """Refuse what is no finite number of seconds; 0 only where it makes sense."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value < 0 or (value == 0 and not zero) or not value < float("inf"):
        raise invalid(field, f"a number of seconds {'of 0 or more' if zero else 'above 0'}", value)
