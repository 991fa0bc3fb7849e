"""The one shape of an error about a field: its name, what it takes, what it got."""

import sys
from typing import Any

_NUMBERS = (float, int)
_MOST_SECONDS = sys.float_info.max  # an int may be beyond it, and still be less than infinity


def invalid(field: str, allowed: str, value: Any) -> ValueError:
    """Make the error; `allowed` completes "FIELD must be ..."."""
    return ValueError(f"{field} must be {allowed}, got {value!r}")


def plain_text(text: str) -> str:
    """Return a text as a `str`: a pickle of an enum's member names its class, which others cannot import."""
    return str.__str__(text)


def fits_a_program(text: str) -> bool:
    """Whether an argument or a variable of a program can hold a text."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a character
        return False
    return "\0" not in text


def check_count(field: str, value: Any, least: int = 0) -> int:
    """Return an int of `least` or more; refuse anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise invalid(field, f"a whole number of {least} or more", value)
    return value


def check_seconds(field: str, value: Any, *, zero: bool = False) -> float:
    """Return a number of seconds that the clock's, a float, can be added to; 0 only where it makes sense."""
    # By exact class first: a queue in memory checks at each pop.
    if value.__class__ in _NUMBERS or (isinstance(value, _NUMBERS) and not isinstance(value, bool)):
        number: float = value
        if 0 < number <= _MOST_SECONDS or (zero and number == 0):
            return number
    raise invalid(field, f"a number of seconds {'of 0 or more' if zero else 'above 0'}", value)
