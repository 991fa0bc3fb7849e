"""What Ray's workers run: calls of functions, and promises; `actor_host` has the actors.

One remote function runs every task: the function that it calls arrives as its first argument,
pickled. Ray would export each function by itself, three to four times slower for one seen once.
"""

import asyncio
import inspect
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from typing import Any

import ray

from fray import SerializationError, use_context
from fray.backend import callable_name, strip_frames
from fray_ray import _job_kv
from fray_ray._context import coroutines
from fray_ray._context.captured import Captured, Packed, loads_with, unpack
from fray_ray._context.errors import portable
from fray_ray._context.payloads import Latest
from fray_ray._context.stream_refs import produced
from fray_ray._ray_internals.errors import bound_error_texts

_JAX = "JAX_PLATFORMS"

bound_error_texts()  # in every worker, before it runs a task


def run_task(payload: bytes, /, *args: Any, **kwargs: Any) -> Any:
    """Call the function in a payload, under the context in it."""
    coroutines.prepare()
    held, args = apart(args)
    return call(lambda: loaded(payload, held), args, kwargs)


def run_stream(payload: bytes, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield from the generator function in a payload, under the context in it."""
    coroutines.prepare()
    held, args = apart(args)
    yield from stream(lambda: loaded(payload, held), args, kwargs)


_loaded: Latest[bytes, tuple[Any, Any]] = Latest(most=64)


def apart(args: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    """Return what a function holds beside its payload, and the arguments of the user."""
    if args and type(args[0]) is Captured:
        return args[0].held, args[1:]
    return [], args


def loaded(payload: bytes, held: list[Any]) -> tuple[Any, Any]:
    """Unpickle a function and its context, once for all calls in this worker while it keeps them.

    One that holds references is unpickled for each call: to keep it would be to keep their objects, and the
    same bytes come with other references.
    """
    known = None if held else _loaded.get(payload)
    if known is not None:
        return known
    _jobs_variables()  # before anything of the user's is imported
    target, context, accelerated = loads_with(payload, held)
    _choose_jax_platform(accelerated)
    if not held:
        _loaded.add(payload, (target, context), len(payload))
    return target, context


def call(load: Callable[[], tuple[Any, Any]], args: Any, kwargs: Any) -> Any:
    """Run a function under its context; what it raises is raised in a form that can be pickled."""
    try:
        target, context = load()
        with use_context(context):
            return returned(target, args, kwargs)
    except KeyboardInterrupt:  # how Ray cancels
        raise
    except BaseException as error:  # noqa: BLE001 - the task's failure, whatever it is, is the caller's to see
        failure = portable(strip_frames(error, __file__))
    raise failure


def returned(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function and return its result, of a coroutine what it returns in the end."""
    result = target(*args, **kwargs)
    return without_generator(target, coroutines.run(result) if inspect.iscoroutine(result) else result)


def without_generator(target: Callable[..., Any], result: Any) -> Any:
    """Return a result; refuse a generator, which Ray would take for several results, and keep the first."""
    if inspect.isgenerator(result):
        what = f"the result of {callable_name(target)}()"
        raise SerializationError(what, "TypeError: cannot pickle 'generator' object")
    return result


def _iterator(items: Any) -> Any:
    """Return the generator itself, or one that yields what an async generator yields."""
    return coroutines.iterate(items) if hasattr(items, "__anext__") else items


def stream(load: Callable[[], tuple[Any, Any]], args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield what a generator function yields; see `call`."""
    failure: BaseException | None = None
    try:
        target, context = load()
        with use_context(context), closing(_iterator(target(*args, **kwargs))) as items:
            # No `yield from`: Ray resumes generators with `send`, which not every iterator takes.
            for item in produced(iter(items)):  # noqa: UP028
                yield item
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        failure = portable(strip_frames(error, __file__))
    if failure is not None:
        raise failure


def _choose_jax_platform(accelerated: bool) -> None:
    """Keep JAX off accelerators that were not requested, unless the job's own variables say what to do."""
    if _JAX in _jobs_variables() or _JAX in _told():
        return
    if not accelerated:
        os.environ[_JAX] = "cpu"
    elif os.environ.get(_JAX) == "cpu":
        del os.environ[_JAX]


@cache
def _jobs_variables() -> dict[str, str]:
    """Take over, once, the variables of the job that this worker is of; what a task was given wins."""
    submission = os.environ.get(_job_kv.SUBMISSION_VARIABLE)
    data = _job_kv.fetch(_job_kv.variables_name(submission)) if submission else None
    variables: dict[str, str] = pickle.loads(data) if data else {}
    told = _told()
    os.environ.update({name: value for name, value in variables.items() if name not in told})
    return variables


def _told() -> dict[str, str]:
    """Return the variables that Ray gave this worker."""
    told: dict[str, str] = ray.get_runtime_context().runtime_env.get("env_vars", {})
    return told


class FrayPromises:
    """Values that are not there yet: what a standard future turns into when it is passed to a task."""

    def __init__(self) -> None:
        self._promised: dict[int, asyncio.Future[Any]] = {}

    def _promise(self, number: int) -> "asyncio.Future[Any]":
        return self._promised.setdefault(number, asyncio.get_running_loop().create_future())

    async def wait(self, number: int) -> Any:
        """Return the value once it is there."""
        kept, packed = await self._promise(number)
        del self._promised[number]
        if packed is not None:
            raise portable(unpack(packed))
        return await kept[0]

    async def live(self) -> None:
        """Return never: the call fails when the process of the actor dies."""
        await asyncio.get_running_loop().create_future()

    async def keep(self, number: int, kept: list[Any], packed: Packed | None) -> None:
        """Give the reference of the value, alone in a list, or the exception."""
        self._promise(number).set_result((kept, packed))
