"""The results of named actors' calls, beside those of tasks: what the context inside may not know.

They are references of this process. A context that keeps its books here reads them as its own; that of a
worker process knows no references but those that its owner gave it.
"""

import time
from collections.abc import Sequence
from typing import Any

from fray.backend import EngineRef, EngineStream, poll_delays
from fray_iris._actor_streams import threads


def is_of_actor(ref: Any) -> bool:
    """Whether something in a worker is the result of a named actor's call, or an item of its stream."""
    return isinstance(ref, EngineRef | EngineStream)


def get_both(inner: Any, refs: Sequence[Any], timeout: float | None) -> list[Any]:
    """Return the values of references of both kinds, as `get` does."""
    deadline = None if timeout is None else time.monotonic() + timeout
    values = []
    for ref in refs:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        values.append((threads() if is_of_actor(ref) else inner).get(ref, timeout=left))
    return values


def wait_for_both(
    inner: Any, refs: Sequence[Any], num_returns: int, timeout: float | None
) -> tuple[list[Any], list[Any]]:
    """Return what is ready among references of both kinds, and the others, as `wait` does."""
    wanted = min(num_returns, len(refs))
    deadline = None if timeout is None else time.monotonic() + timeout
    for pause in poll_delays(longest=0.02):
        done: set[int] = set()
        for context, of_actors in ((inner, False), (threads(), True)):
            own = [ref for ref in refs if is_of_actor(ref) is of_actors]
            done |= set(map(id, context.wait(own, len(own), 0)[0])) if own else set()
        if len(done) >= wanted or (deadline is not None and time.monotonic() >= deadline):
            ready = [ref for ref in refs if id(ref) in done][:wanted]
            chosen = set(map(id, ready))
            return ready, [ref for ref in refs if id(ref) not in chosen]
        time.sleep(pause)
    raise AssertionError  # the delays never end
