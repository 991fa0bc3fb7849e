"""Calls submitted to Ray's core without what Ray's `remote` does again for each: internals of Ray 2.60.

`RemoteFunction._remote` and `ActorHandle._actor_method_call` fill in and check all options of each call, and
bind its arguments to the signature of the function. Here the options are the same for many calls, and what
runs them takes any arguments: that is a third of what the caller's thread does for a call. `calls` imports
this module under the versions of Ray that it was read in.
"""

from collections.abc import Sequence
from inspect import Parameter
from typing import Any

import ray as typed_ray
from ray import remote_function
from ray._common.ray_option_utils import task_options
from ray._common.signature import DUMMY_TYPE
from ray._common.utils import resources_from_ray_options
from ray._private import worker as ray_worker
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.tracing.tracing_helper import _is_tracing_enabled

from fray_ray._options import Sender

ray: Any = typed_ray
_worker: Any = ray_worker.global_worker
_STREAMING = ray._raylet.STREAMING_GENERATOR_RETURN
_ANY_ARGUMENTS = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}


def task_sender(function: Any, options: dict[str, Any], by_ray: Sender) -> Sender | None:
    """Return what submits a remote function that takes any arguments; None where Ray has to look at each.

    Read in Ray 2.60.
    """
    strategy = options.get("scheduling_strategy")
    by_group = isinstance(strategy, PlacementGroupSchedulingStrategy)
    if _is_watched() or by_group or "runtime_env" in options or options.get("num_returns") == "dynamic":
        return None
    said = {name: options.get(name, option.default_value) for name, option in task_options.items()}
    tail = _task_options(said, strategy)
    streams = tail[1] == _STREAMING

    def send(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _worker.connected:
            return by_ray(args, kwargs)
        core = _worker.core_worker
        if (
            function._last_export_cluster_and_job != _worker.current_cluster_and_job  # the first in a cluster
            or (strategy is None and core.should_capture_child_tasks_in_placement_group())
            or _worker.debugger_breakpoint
        ):
            return by_ray(args, kwargs)
        refs = core.submit_task(function._language, function._function_descriptor, _flat(args, kwargs), *tail)
        return _answer(refs, streams)

    return send


def _task_options(said: dict[str, Any], strategy: Any) -> tuple[Any, ...]:
    """Return the arguments of `submit_task` behind those of the function, in order."""
    retried = said["retry_exceptions"]
    listed = isinstance(retried, list | tuple)
    number = _or(said["num_returns"], 1)
    return (
        said["name"] or "",
        _STREAMING if number == "streaming" else number,
        resources_from_ray_options(said),
        said["max_retries"],
        True if listed else retried,
        tuple(retried) if listed else None,
        "DEFAULT" if strategy is None else strategy,
        b"",  # the breakpoint of a debugger
        "{}",  # the runtime environment
        _or(said["_generator_backpressure_num_objects"], -1),
        1,  # objects of a yield
        said["enable_task_events"],
        said["_labels"],
        said["label_selector"],
        said["fallback_strategy"],
    )


def actor_sender(handle: Any, bound: Any, by_ray: Sender) -> Sender | None:
    """Return what calls a method that takes any arguments; None where Ray has to look at each call.

    Read in Ray 2.60.
    """
    kinds = {parameter.kind for parameter in handle._ray_method_signatures[bound._method_name]}
    retried, number = bound._retry_exceptions or False, bound._num_returns
    special = bound._decorator or bound._tensor_transport or handle._ray_is_cross_language
    if _is_watched() or special or not kinds >= _ANY_ARGUMENTS:
        return None
    if not isinstance(retried, bool) or number not in (1, "streaming"):
        return None
    streams = number == "streaming"
    descriptor = handle._ray_function_descriptor[bound._method_name]
    head = handle._ray_actor_language, handle._ray_actor_id, descriptor
    tail = (
        "",  # the name of the call
        _STREAMING if streams else 1,
        bound._max_task_retries or 0,
        retried,
        None,
        handle._ray_actor_method_cpus,
        b"",  # the concurrency group
        _or(bound._generator_backpressure_num_objects, -1),
        1,  # objects of a yield
        bound._enable_task_events,
        None,
        None,
    )

    def send(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A reference may be of a tensor on a device, which Ray moves by itself.
        if any(map(_is_ref, args)) or not _worker.connected:
            return by_ray(args, kwargs)
        return _answer(_worker.core_worker.submit_actor_task(*head, _flat(args, kwargs), *tail), streams)

    return send


def _is_watched() -> bool:
    """Whether Ray looks at each call: for a trace, or for a hook."""
    return bool(_is_tracing_enabled() or remote_function._task_launch_hook)


def _is_ref(arg: Any) -> bool:
    return isinstance(arg, ray.ObjectRef)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments as Ray's core takes them: each behind its name, or behind a mark."""
    flat: list[Any] = []
    for arg in args:
        flat += (DUMMY_TYPE, arg)
    for name, arg in kwargs.items():
        flat += (name, arg)
    return flat


def _answer(refs: Sequence[Any], streams: bool) -> Any:
    if streams:
        return ray.ObjectRefGenerator(refs[0], _worker)
    return refs[0] if len(refs) == 1 else refs or None
