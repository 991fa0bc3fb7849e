"""The options of a push."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fray._values.checks import check_seconds, invalid

REPLY_TTL = 3600.0
ROOM_TIMEOUT = 30.0
"""Seconds that a push waits for room where neither it nor the queue's `timeout` gives another number."""
LONGEST_KEY = 200
_PRIORITIES = 1 << 31


@dataclass(frozen=True, slots=True)
class PushOptions:
    """The options of one push, checked. They hold for all of its items, but for the keys.

    Args:
        priority: Higher ones are taken first.
        delay: Seconds before which nobody gets the items.
        ttl: Seconds after which an item that nobody took is given up; None for never.
        keys: A key for each item, or None; the second item of a key is not stored.
        reply_ttl: Seconds for which an answer is kept; 0 where none is wanted.
        wait: Seconds to wait for room; None for the queue's own timeout.
    """

    priority: int = 0
    delay: float = 0.0
    ttl: float | None = None
    keys: tuple[str | None, ...] | None = None
    reply_ttl: float = 0.0
    wait: float | None = None

    def __post_init__(self) -> None:
        if (
            not isinstance(self.priority, int)
            or isinstance(self.priority, bool)
            or not -_PRIORITIES <= self.priority < _PRIORITIES
        ):
            raise invalid("priority", "a whole number of 32 bits; higher ones are taken first", self.priority)
        check_seconds("delay", self.delay, zero=True)
        if self.ttl is not None:
            check_seconds("ttl", self.ttl)
        for key in self.keys or ():
            if key is not None and not _is_key(key):
                raise invalid("key", f"text of 1 to {LONGEST_KEY} characters, all of which UTF-8 has", key)
        # A float: a store keeps it as one, and there are whole numbers that are none for it.
        object.__setattr__(self, "reply_ttl", float(check_seconds("reply_ttl", self.reply_ttl, zero=True)))
        if self.wait is not None:
            check_seconds("wait", self.wait, zero=True)

    @property
    def seconds(self) -> float:
        """How long the items may wait for a taker; infinite without a ttl."""
        return math.inf if self.ttl is None else self.ttl

    @property
    def is_plain(self) -> bool:
        """Whether items go to the end of the line, and nothing else is requested."""
        return self in (PLAIN, PushOptions(wait=self.wait))

    def key_of(self, index: int) -> str | None:
        """Return the key of one of the items."""
        return None if self.keys is None else self.keys[index]

    def needs(self) -> list[tuple[str, str]]:
        """Return the capabilities that a queue needs for these, each with the option that needs it."""
        asked = {
            "priorities": ("priority=", self.priority != 0),
            "delays": ("delay=", self.delay > 0),
            "ttl": ("ttl=", self.ttl is not None),
            "keys": ("key=", self.keys is not None),
            "replies": ("reply=True", self.reply_ttl > 0),
        }
        return [(capability, option) for capability, (option, given) in asked.items() if given]


def _is_key(key: object) -> bool:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        return False
    try:
        key.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in a file name that is no UTF-8
        return False
    return True


PLAIN = PushOptions()


def push_options(
    *,
    priority: int = 0,
    delay: float = 0.0,
    ttl: float | None = None,
    keys: Sequence[str | None] | None = None,
    reply: bool = False,
    reply_ttl: float = REPLY_TTL,
    wait: float | None = None,
) -> PushOptions:
    """Return checked options; `PLAIN` itself where nothing is requested."""
    if not isinstance(reply, bool):
        raise invalid("reply", "True or False", reply)
    check_seconds("reply_ttl", reply_ttl)
    if isinstance(keys, str):
        raise invalid("keys", "a key (or None) for each item", keys)
    given: tuple[Any, ...] | None = None if keys is None else tuple(keys)
    if given is not None and all(key is None for key in given):
        given = None
    options = PushOptions(priority, delay, ttl, given, reply_ttl if reply else 0.0, wait)
    return PLAIN if options == PLAIN else options
