"""What Ray's workers run: calls of functions, actors, promises.

One remote function runs every task: the function that it calls arrives as its first argument,
pickled. Ray would export each function by itself, three to four times slower for one seen once.
"""

import asyncio
import inspect
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, lru_cache
from typing import Any

import ray

from fray import use_context
from fray.backend import is_generator_function, unpack_exception
from fray_ray import _coroutines, _mail
from fray_ray._errors import portable
from fray_ray._stream_refs import produced
from fray_ray._table import submission_of

_JAX = "JAX_PLATFORMS"
_INSTANCE = "_fray_instance"


def run_task(payload: bytes, /, *args: Any, **kwargs: Any) -> Any:
    """Call the function in a payload, under the context in it."""
    return _call(lambda: _loaded(payload), None, args, kwargs)


def run_stream(payload: bytes, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield from the generator function in a payload, under the context in it."""
    yield from _stream(lambda: _loaded(payload), None, args, kwargs)


@lru_cache(maxsize=64)
def _loaded(payload: bytes) -> tuple[Any, Any]:
    """Unpickle a function and its context, once for all calls in this worker."""
    _jobs_variables()  # before anything of the user's is imported
    target, context, accelerated = pickle.loads(payload)
    _choose_jax_platform(accelerated)
    return target, context


def _call(load: Callable[[], tuple[Any, Any]], method: str | None, args: Any, kwargs: Any) -> Any:
    try:
        target, context = load()
        with use_context(context):
            result = (getattr(target, method) if method else target)(*args, **kwargs)
            return _coroutines.run(result) if inspect.iscoroutine(result) else result
    except KeyboardInterrupt:  # how Ray cancels
        raise
    except BaseException as error:  # noqa: BLE001 - the task's failure, whatever it is, is the caller's to see
        failure = portable(_without_our_frames(error))
    raise failure


def _stream(load: Callable[[], tuple[Any, Any]], method: str | None, args: Any, kwargs: Any) -> Iterator[Any]:
    failure: BaseException | None = None
    try:
        target, context = load()
        with (
            use_context(context),
            closing((getattr(target, method) if method else target)(*args, **kwargs)) as items,
        ):
            # No `yield from`: Ray resumes generators with `send`, which not every iterator takes.
            for item in produced(iter(items)):  # noqa: UP028
                yield item
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        failure = portable(_without_our_frames(error))
    if failure is not None:
        raise failure


def _without_our_frames(error: BaseException) -> BaseException:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _choose_jax_platform(accelerated: bool) -> None:
    """Keep JAX off accelerators that were not asked for, unless the job's own variables say what to do."""
    if _JAX in _jobs_variables() or _JAX in _told():
        return
    if not accelerated:
        os.environ[_JAX] = "cpu"
    elif os.environ.get(_JAX) == "cpu":
        del os.environ[_JAX]


@cache
def _jobs_variables() -> dict[str, str]:
    """Take over, once, the variables of the job that this worker is of; what Ray was told of a task wins."""
    job = os.environ.get("FRAY_JOB_ID")
    data = _mail.fetch(_mail.variables_name(submission_of(job))) if job else None
    variables: dict[str, str] = pickle.loads(data) if data else {}
    told = _told()
    os.environ.update({name: value for name, value in variables.items() if name not in told})
    return variables


def _told() -> dict[str, str]:
    """Return the variables that Ray gave this worker."""
    told: dict[str, str] = ray.get_runtime_context().runtime_env.get("env_vars", {})
    return told


def host_class(cls: Callable[..., Any], methods: dict[str, Any]) -> type:
    """Make the class that hosts an actor: the methods of `cls`, each run as a task is.

    The methods are there by name, so that plain Ray code can find the actor and call them.
    """

    def __init__(self: Any, payload: bytes, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        setattr(self, _INSTANCE, _construct(payload, args, kwargs))

    members: dict[str, Any] = {
        name: _streaming(name) if is_generator_function(method) else _forwarding(name)
        for name, method in methods.items()
    }
    name = getattr(cls, "__name__", type(cls).__name__)
    return type(name, (), {**members, "__init__": __init__, "__module__": __name__})


def _construct(payload: bytes, args: Any, kwargs: Any) -> tuple[Any, Any]:
    def load() -> tuple[Any, Any]:
        return _loaded(payload)

    return _call(load, None, args, kwargs), load()[1]


def _forwarding(name: str) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _call(lambda: getattr(self, _INSTANCE), name, args, kwargs)

    method.__name__ = method.__qualname__ = name
    return method


def _streaming(name: str) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        yield from _stream(lambda: getattr(self, _INSTANCE), name, args, kwargs)

    method.__name__ = method.__qualname__ = name
    return method


class Promises:
    """Values that are not there yet: what a standard future turns into when it is passed to a task."""

    def __init__(self) -> None:
        self._promised: dict[int, asyncio.Future[Any]] = {}

    def _promise(self, number: int) -> "asyncio.Future[Any]":
        return self._promised.setdefault(number, asyncio.get_running_loop().create_future())

    async def wait(self, number: int) -> Any:
        """Return the value once it is there."""
        value, packed = await self._promise(number)
        del self._promised[number]
        if packed is not None:
            raise portable(unpack_exception(packed))
        return value

    async def keep(self, number: int, value: Any, packed: bytes | None) -> None:
        """Give the value, or the exception."""
        self._promise(number).set_result((value, packed))
