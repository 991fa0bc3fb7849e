"""Arguments that every queue checks the same way, before anything is changed."""

import re

from fray.backend import check_count
from fray_queue._items import MOST_ATTEMPTS, Settings

KEPT_AFTER_FETCH = 60.0
"""Seconds that a fetched answer stays: the producer may fetch it again."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LONGEST_NAME = 100
MOST_DEAD = 100_000
"""Dead letters that a queue keeps unless it was created with another number."""


def check_bounds(max_attempts: int | None, max_size: int | None, max_dead: int | None) -> Settings:
    """Return what a queue is made with; every store counts up to `MOST_ATTEMPTS`."""
    bounds = {"max_attempts": max_attempts, "max_size": max_size, "max_dead": max_dead}
    for name, count in bounds.items():
        if count is not None and check_count(name, count, 1) > MOST_ATTEMPTS:
            raise ValueError(f"{name} must be at most {MOST_ATTEMPTS}, got {count}")
    return Settings(max_attempts, max_size, max_dead)


def check_name(name: str) -> str:
    """Return a queue's name: letters, digits, `.`, `_` and `-`, which no URL, path or page has to escape."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME or ".." in name:
        raise ValueError(
            f"{name!r} is not a name for a queue: letters, digits, '.', '_' and '-', at most {LONGEST_NAME}, "
            "starting with a letter or a digit, without '..'"
        )
    return name


def full_message(size: int, count: int, most: int) -> str:
    """Report that items do not fit."""
    if count > most:
        return f"{count} items do not fit a queue of max_size={most} at once; push fewer together"
    return (
        f"the queue is full: it has {size} of max_size={most} items; take some, or push with a longer wait="
    )
