"""Calls on their way to Ray: functions prepared once per set of options, arguments named when they fail."""

from collections.abc import Callable, Mapping
from inspect import ismethod
from types import FunctionType, SimpleNamespace
from typing import Any
from weakref import WeakMethod, ref

import ray

from fray import SerializationError
from fray.backend import callable_name, dumps, named_arguments
from fray.job import TaskOptions
from fray_ray._context.remote import run_stream, run_task
from fray_ray._options import STREAM_BUFFER, task_options, uses_accelerator
from fray_ray._ray_internals.calls import task_sender

_KEPT = 512
_NAMES = 256  # of functions that have a remote function of their own; each is exported to the cluster once


class Prepared:
    """One of the two functions that run tasks, under one set of options."""

    __slots__ = ("accelerated", "send")

    def __init__(self, options: dict[str, Any], name: str, *, streaming: bool) -> None:
        self.accelerated = uses_accelerator(options)
        options = {**options, "name": name}
        function = run_task
        if streaming:
            function = run_stream
            options |= {"num_returns": "streaming", "_generator_backpressure_num_objects": STREAM_BUFFER}
        if "max_calls" in options:  # counted for each function by itself, and no option of a call
            decorated = ray.remote(max_calls=options.pop("max_calls"))(function)
        else:
            decorated = _remote_function(name, streaming=streaming)
        self.send = task_sender(decorated, options)


_TASK, _STREAM = ray.remote(run_task), ray.remote(run_stream)
_by_name: dict[tuple[str, bool], Any] = {}


def _remote_function(name: str, *, streaming: bool) -> Any:
    """Return what runs tasks of a name: Ray's warnings and its state know them by that of the function."""
    known = _by_name.get((name, streaming))
    if known is None:
        if len(_by_name) >= _NAMES:
            return _STREAM if streaming else _TASK
        function: Any = run_stream if streaming else run_task
        named = FunctionType(function.__code__, function.__globals__, name)
        named.__qualname__ = name
        known = _by_name[name, streaming] = ray.remote(named)
    return known


class Calls:
    """The prepared functions of one context.

    Args:
        base: Ray's options for every task of the context.
    """

    def __init__(self, base: Mapping[str, Any]) -> None:
        self._base = base
        # Each with what says whether it is of a function; of any where tasks are not counted.
        self._prepared: dict[Any, tuple[Callable[[Any], bool], Prepared]] = {}

    def prepare(self, fn: Callable[..., Any], options: TaskOptions, *, streaming: bool) -> Prepared:
        """Return what starts `fn` under these options."""
        name = options.name or callable_name(fn)
        counted = options.max_calls is not None or "max_calls" in self._base
        key = options, tuple(options.resources.items()), name, streaming, _identity(fn) if counted else None
        is_of, found = self._prepared.get(key, (_any, None))
        if found is None or not is_of(fn):
            if len(self._prepared) >= _KEPT:
                self._prepared.clear()
            found = Prepared(task_options(self._base, options), name, streaming=streaming)
            self._prepared[key] = _sameness(fn) if counted else _any, found
        return found


def _any(_: Any) -> bool:
    return True


def _identity(fn: Any) -> Any:
    """Return what a function has alone of those that exist; a function may have no hash."""
    return (id(fn.__self__), id(fn.__func__)) if ismethod(fn) else id(fn)


def _sameness(fn: Any) -> Callable[[Any], bool]:
    """Return whether another is this function, which is not kept: nor are the references that it holds."""
    try:
        known = WeakMethod(fn) if ismethod(fn) else ref(fn)
    except TypeError:  # an object without a place for weak references
        return lambda other: other is fn
    return lambda other: (still := known()) is not None and _identity(still) == _identity(other)


def explain_unpicklable(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise SerializationError for the argument that cannot be pickled; return where every one can.

    Args:
        target: What is called, or its name.
    """
    if isinstance(target, str):
        target = SimpleNamespace(__qualname__=target.removesuffix("()"))
    for what, value in named_arguments(target, args, kwargs):
        if not isinstance(value, ray.ObjectRef):
            dumps(value, what)


def put(value: Any, what: str) -> Any:
    """Store a value in the cluster's object store and return its reference.

    Args:
        what: What the value is, for the SerializationError where it cannot be pickled.
    """
    try:
        return ray.put(value)
    except Exception as error:
        dumps(value, what)
        raise SerializationError(what, str(error)) from error
