"""The results of named actors' calls, beside those of tasks: what a context of this machine does not know.

They are futures of this process behind references; a worker's own context knows no reference but its own.
"""

import time
from collections.abc import Iterable
from typing import Any

from fray import GetTimeoutError
from fray.backend import poll_delays
from fray.job import ObjectRef
from fray_iris._actors import future_of


def any_of_actors(refs: Any) -> bool:
    """Whether results of named actors are among references."""
    return any(future_of(each) is not None for each in (refs if isinstance(refs, list | tuple) else [refs]))


def passed(arg: Any) -> Any:
    """Return an argument as the context inside takes it: a future for the result of a named actor's call."""
    return future_of(arg) or arg if isinstance(arg, ObjectRef) else arg


def get_both(inner: Any, refs: Iterable[Any], timeout: float | None) -> list[Any]:
    """Return the values of references of both kinds, as `get` does."""
    deadline = None if timeout is None else time.monotonic() + timeout
    values = []
    for ref in refs:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        future = future_of(ref)
        if future is None:
            values.append(inner.get(ref, timeout=left))
            continue
        try:
            values.append(future.result(left))
        except TimeoutError as error:
            if future.done():
                raise  # the call's own
            raise GetTimeoutError(f"not there after {timeout:g} s: {ref!r}; it goes on") from error
    return values


def wait_for_both(
    inner: Any, refs: list[Any], num_returns: int, timeout: float | None
) -> tuple[list[Any], list[Any]]:
    """Return what is ready among references of both kinds, and the others, as `wait` does."""
    wanted = min(num_returns, len(refs))
    deadline = None if timeout is None else time.monotonic() + timeout
    for pause in poll_delays(longest=0.02):
        others = [ref for ref in refs if future_of(ref) is None]
        done = set(map(id, inner.wait(others, len(others), 0)[0])) if others else set()
        done |= {id(ref) for ref in refs if (future := future_of(ref)) is not None and future.done()}
        if len(done) >= wanted or (deadline is not None and time.monotonic() >= deadline):
            ready = [ref for ref in refs if id(ref) in done][:wanted]
            chosen = set(map(id, ready))
            return ready, [ref for ref in refs if id(ref) not in chosen]
        time.sleep(pause)
    raise AssertionError  # the delays never end
