"""Stop one task, and return whether it was stopped."""

import weakref
from collections.abc import Sequence
from typing import Any

import ray
from ray import exceptions as rx

from fray import TaskCancelledError
from fray_ray._context.errors import translate
from fray_ray._context.io_thread import on_io_thread, soon_on_io_thread
from fray_ray._ray_internals.calls import stream_ref

_LISTENS_WITHIN = 0.5  # seconds that Python code has to come to its next instruction before it is forced
_FORCED = 20  # times at most


def cancel(ref: Any) -> bool:
    """Cancel a task or a stream; return whether `get` raises TaskCancelledError from now on."""
    if isinstance(ref, ray.ObjectRefGenerator):
        interrupt([ref])
        return True
    if _ready(ref, 0):
        return False
    interrupt([ref])
    # More than once: while a worker has not answered the first request, Ray ignores every other.
    for _ in range(_FORCED):
        if _ready(ref, _LISTENS_WITHIN):
            break
        try:
            on_io_thread(lambda: ray.cancel(ref, force=True))
        except ValueError:  # an actor's method: to end it is to end the actor
            return False
    return _cancelled(ref)


def interrupt(refs: Sequence[Any]) -> None:
    """Cancel tasks and streams in the order given; those that ignore it continue."""

    def cancel_each() -> None:
        for ref in refs:
            ray.cancel(ref)

    if refs:
        on_io_thread(cancel_each)


def close_when_dropped(stream: ray.ObjectRefGenerator) -> None:
    """Cancel a stream that nobody holds any more; Ray alone lets its generator run on, unbounded."""
    cancel_when_dropped(stream, stream_ref(stream))


def cancel_when_dropped(holder: object, ref: Any) -> None:
    """Cancel a task when nobody holds an object any more."""
    weakref.finalize(holder, _close, ref).atexit = False


def _close(ref: Any) -> None:
    if ray.is_initialized():
        soon_on_io_thread(lambda: ray.cancel(ref))


def _ready(ref: Any, timeout: float) -> bool:
    return bool(ray.wait([ref], timeout=timeout, fetch_local=False)[0])


def _cancelled(ref: Any) -> bool:
    try:
        ray.get(ref, timeout=0)
    except rx.RayError as error:
        return isinstance(translate(error), TaskCancelledError)
    return False
