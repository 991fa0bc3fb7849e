"""`wait`: which of many references and streams are ready, in the order they were given."""

import time
from collections.abc import Sequence
from typing import Any

from fray._engine.pool import blocking
from fray._engine.refs import await_refs
from fray._engine.streams import LocalStream, Producer


def ready_positions(refs: Sequence[Any], needed: int) -> list[int]:
    """Return the positions of the first `needed` that are ready."""
    ready: list[int] = []
    try:
        for index, ref in enumerate(refs):
            if ref._state:
                ready.append(index)
                if len(ready) == needed:
                    break
    except AttributeError:
        raise ValueError(f"wait takes what put() and run() return, got {ref!r}") from None
    return ready


def block_until_ready(refs: Sequence[Any], needed: int, timeout: float | None) -> list[int]:
    """Wait until `needed` are ready, or for `timeout` seconds, and return the ready positions."""
    deadline = None if timeout is None else time.monotonic() + timeout
    sources = list(dict.fromkeys(ref._producer if isinstance(ref, LocalStream) else ref for ref in refs))
    for source in sources:
        if isinstance(source, Producer):
            source.resume()
    enough = max(1, needed - (len(refs) - len(sources)))  # one that stands in the list twice counts twice
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        with blocking():
            in_time = await_refs(sources, min(enough, len(sources)), left)
        ready = ready_positions(refs, needed)
        if len(ready) == needed or not in_time:
            return ready
        enough += 1
