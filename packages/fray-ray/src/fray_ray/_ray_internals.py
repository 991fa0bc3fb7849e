"""What is not Ray's public API: one function each, with the version of Ray that it was read in."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import ray
from ray.exceptions import RayTaskError

_HEAD, _TAIL = 4_000, 12_000  # characters of an error's text: who failed last, and where it all began


def bound_error_texts() -> None:
    """Let the text of a failure that runs down a chain of tasks stop growing.

    Read in Ray 2.60: a task whose argument failed fails with the text of that failure below its own, so a
    chain of n tasks stores and formats n * n lines (24 s for 2,000 tasks). Longer ones are cut in the middle.
    """
    whole: Callable[[Any], str] = RayTaskError.__str__
    if hasattr(whole, "__wrapped__"):
        return

    @wraps(whole)
    def text(self: Any) -> str:
        traceback_text = self.traceback_str
        if len(traceback_text) <= _HEAD + _TAIL:
            return whole(self)
        cut = len(traceback_text) - _HEAD - _TAIL
        self.traceback_str = f"{traceback_text[:_HEAD]}\n  [{cut} characters cut]\n{traceback_text[-_TAIL:]}"
        try:
            return whole(self)
        finally:
            self.traceback_str = traceback_text

    RayTaskError.__str__ = text  # type: ignore[method-assign]


Sender = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Makes one call of positional and keyword arguments, and returns what Ray's `remote` would."""

_READ = "2.60."  # the versions of Ray whose internals `_direct_calls` uses


def task_sender(function: Any, options: dict[str, Any]) -> Sender:
    """Return what submits a remote function under options, as its `remote` does and faster where it can."""
    remote = function.options(**options).remote

    def by_ray(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return remote(*args, **kwargs)

    if not ray.__version__.startswith(_READ):
        return by_ray
    from fray_ray._direct_calls import task_sender as direct

    return direct(function, options, by_ray) or by_ray


def actor_sender(handle: Any, method: str) -> Sender:
    """Return what calls a method of an actor, as its `remote` does and faster where it can."""
    bound = getattr(handle, method)

    def by_ray(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return bound.remote(*args, **kwargs)

    if not ray.__version__.startswith(_READ):
        return by_ray
    from fray_ray._direct_calls import actor_sender as direct

    return direct(handle, bound, by_ray) or by_ray
