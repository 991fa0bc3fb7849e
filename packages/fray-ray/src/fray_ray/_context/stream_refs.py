"""References that a generator task may yield inside its items, held by the worker that made them.

Ray 2.60 can lose the object of such a reference before the consumer has it (ray issue #58080): its owner
learns that nobody borrows it, and frees it with the producer's own reference. So what a generator puts or
submits stays referenced by its worker: the latest so many, until the worker ends.
"""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

_HELD = 10_000
_held: deque[Any] = deque(maxlen=_HELD)
_producing = threading.local()


def produced(items: Iterator[Any]) -> Iterator[Any]:
    """Yield the items of a generator; what it makes on the way is held."""
    while True:
        _producing.now = True
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            _producing.now = False
        yield item


def hold(ref: Any) -> None:
    """Hold a reference where a generator made it."""
    if getattr(_producing, "now", False):
        _held.append(ref)
