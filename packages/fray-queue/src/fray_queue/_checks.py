"""Arguments that every queue checks the same way, before anything is changed."""

import re
from typing import Any

from fray.queue import Lease

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LONGEST_NAME = 100
MOST_DEAD = 100_000
"""Dead letters that a queue keeps unless it was told otherwise."""


def check_count(name: str, value: int) -> int:
    """Return a whole number of 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is a whole number, 1 or more; got {value!r}")
    return value


def check_lease(lease: Any) -> Any:
    """Return a lease; anything else is an error that says what was given."""
    if not isinstance(lease, Lease):
        raise ValueError(f"expected a Lease as `pop` returns it, got {lease!r}")
    return lease


def check_name(name: str) -> str:
    """Return a queue's name: letters, digits, `.`, `_` and `-`, which no URL, path or page has to escape."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME or ".." in name:
        raise ValueError(
            f"{name!r} is no name for a queue: letters, digits, '.', '_' and '-', at most {LONGEST_NAME}, "
            "starting with a letter or a digit, without '..'"
        )
    return name


def full_message(size: int, count: int, most: int, wait: float) -> str:
    """Say that items do not fit."""
    if count > most:
        return f"{count} items do not fit a queue of max_size={most} at once; push fewer together"
    waited = f", and had no room within {wait:g} s" if wait else ""
    return f"the queue has {size} items of max_size={most}{waited}; take items, or push with a longer wait="
