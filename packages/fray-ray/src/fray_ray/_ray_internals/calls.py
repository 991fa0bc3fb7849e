"""Calls of tasks and actors, and what Ray's handles and references know beyond their public methods."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray._common.usage import usage_lib

from fray_ray._options import Sender

_READ = "2.60."  # the versions of Ray whose internals `direct_calls` uses


def task_sender(function: Any, options: dict[str, Any]) -> Sender:
    """Return what submits a remote function under options, as its `remote` does and faster where it can.

    Read in Ray 2.60; under any other it is Ray's `remote`.
    """
    remote = function.options(**options).remote

    def by_ray(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return remote(*args, **kwargs)

    if not ray.__version__.startswith(_READ):
        return by_ray
    from fray_ray._ray_internals.direct_calls import task_sender as direct

    return direct(function, options, by_ray) or by_ray


def actor_sender(handle: Any, method: str) -> Sender:
    """Return what calls a method of an actor, as its `remote` does and faster where it can.

    Read in Ray 2.60; under any other it is Ray's `remote`.
    """
    bound = getattr(handle, method)

    def by_ray(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return bound.remote(*args, **kwargs)

    if not ray.__version__.startswith(_READ):
        return by_ray
    from fray_ray._ray_internals.direct_calls import actor_sender as direct

    return direct(handle, bound, by_ray) or by_ray


def let_actors_be_made_in_signal_handlers() -> None:
    """Let a signal handler make an actor where its thread is making one.

    Read in Ray 2.60: each looks whether its use was reported, under a lock that its own thread waits for.
    """
    usage: Any = usage_lib
    usage._recorded_library_usages_lock = threading.RLock()


def actor_id(handle: Any) -> Any:
    """Return the id of an actor, by which handles of the same one are known. Read in Ray 2.60."""
    return handle._actor_id


def class_name(handle: Any) -> str:
    """Return the name of an actor's class. Read in Ray 2.60."""
    return str(handle._ray_actor_creation_function_descriptor.class_name)


def method_signatures(handle: Any) -> Mapping[str, Any]:
    """Return the methods that an actor was made with, by name. Read in Ray 2.60."""
    signatures: Mapping[str, Any] = handle._ray_method_signatures
    return signatures


def was_made_here(handle: Any) -> bool:
    """Whether a handle is that of an actor's maker: with `get_if_exists` it may be one more to another's.

    Read in Ray 2.60.
    """
    return bool(handle._ray_original_handle)


def stream_ref(stream: Any) -> Any:
    """Return the reference of the task that makes a stream, which may be cancelled. Read in Ray 2.60."""
    return stream._generator_ref


def on_ready(ref: Any, callback: Callable[[BaseException | None], object]) -> None:
    """Have a function called, on Ray's own thread or on this one, as soon as a value or an exception exists.

    Neither is fetched or unpickled for that. The function's argument says why this will not be known; None
    where all is well. Read in Ray 2.60.
    """
    ref._on_ready(callback)
