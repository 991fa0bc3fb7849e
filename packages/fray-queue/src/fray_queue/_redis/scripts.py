"""The scripts: Lua that Redis runs as a whole, each sent once and then named by its digest."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fray_queue._checks import MOST_DEAD

VERSION = 2
"""Of the keys that the scripts write. Every script refuses a queue of another version."""
_ALSO_FULL = "#!lua flags=allow-oom\n"
"""How a script begins that may write where memory is full, as it or what follows makes room."""
_ONCE = {"push", "pop", "done", "release", "fetch", "operate"}  # of requests that are named, and done once
UPGRADES = {1: "return redis.call('HSET', KEYS[1], 'version', 2)"}  # what was in `ready` may stay there
"""Version -> a script that makes the next of it: KEYS[1] is the queue's `meta`, whose version it sets."""


class Script(NamedTuple):
    """A script's text and its digest."""

    name: str
    text: bytes
    digest: bytes


@cache
def script(name: str) -> Script:
    """Return a script by the name of its file."""
    text = _read(name) if name == "open" else _read("prelude") + _read(name)
    first = "#!lua\n" if name == "push" else _ALSO_FULL
    first += "local SLOT = " + ("'s:' .. ARGV[2]\n" if name in _ONCE else "false\n")
    return as_script(name, first + text, VERSION)


def upgrade(version: int) -> Script:
    """Return the script that makes the next version of a queue of this one."""
    # Two programs may both have found it: the second finds the next version, and does nothing.
    guard = f"if redis.call('HGET', KEYS[1], 'version') ~= '{version}' then return 0 end\n"
    guard += "redis.call('HDEL', KEYS[1], 'plain')\n"  # which has its version, too
    return as_script("upgrade", _ALSO_FULL + guard + UPGRADES[version], VERSION)


def as_script(name: str, text: str, version: int) -> Script:
    """Return a script of this text."""
    whole = text.replace("@VERSION@", str(version)).replace("@MOST_DEAD@", str(MOST_DEAD)).encode()
    return Script(name, whole, hashlib.sha1(whole, usedforsecurity=False).hexdigest().encode())


def _read(name: str) -> str:
    return (files("fray_queue._redis") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
