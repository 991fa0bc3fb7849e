"""The classes that host actors in Ray's workers: the methods of the user's class, each run as a task is.

They are there by name, so that plain Ray code can find the actor and call them. A class with an async
method is hosted by one, so that Ray gives the actor one event loop, on which all its calls run.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import ray

from fray import get_job_context, set_job_ctx
from fray.backend import callable_name, is_async_class, is_generator_function, strip_frames
from fray_ray._context.errors import portable
from fray_ray._context.remote import apart, call, loaded, returned, stream, without_generator
from fray_ray._options import STREAM_BUFFER

_INTERRUPTED = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)  # how Ray ends a call


def host_class(cls: Callable[..., Any], methods: dict[str, Any]) -> type:
    """Make the class that hosts actors of `cls`.

    Args:
        methods: The functions of its public methods, by name.
    """

    def __init__(self: Any, payload: bytes, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        held, args = apart(args)
        self._fray_instance = call(lambda: _alone(payload, held), args, kwargs)

    one, many = (_awaited, _streamed_async) if is_async_class(cls) else (_called, _streamed)
    members = {
        name: (many if is_generator_function(method) else one)(name) for name, method in methods.items()
    }
    name = callable_name(cls).rpartition(".")[2]
    return type(name, (), {**members, "__init__": __init__, "__module__": __name__})


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    method.__name__ = method.__qualname__ = name
    return method


def _alone(payload: bytes, held: list[Any]) -> tuple[Any, Any]:
    """Load an actor's class and its context, which is the current one of this process: it is the actor's."""
    target, context = loaded(payload, held)
    set_job_ctx(context)
    return target, context


def _called(name: str) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return returned(getattr(self._fray_instance, name), args, kwargs)
        except KeyboardInterrupt:  # how Ray cancels
            raise
        except BaseException as error:  # noqa: BLE001 - the call's failure is the caller's to see
            failure = portable(strip_frames(error, __file__))
        raise failure

    return _named(method, name)


def _streamed(name: str) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        yield from stream(lambda: (getattr(self._fray_instance, name), get_job_context()), args, kwargs)

    return _bounded(_named(method, name))


def _awaited(name: str) -> Callable[..., Any]:
    async def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            target = getattr(self._fray_instance, name)
            result = target(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            return without_generator(target, result)
        except _INTERRUPTED:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            failure = portable(strip_frames(error, __file__))
        raise failure

    return _named(method, name)


def _streamed_async(name: str) -> Callable[..., Any]:
    async def method(self: Any, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        failure: BaseException | None = None
        try:
            items = getattr(self._fray_instance, name)(*args, **kwargs)
            if inspect.isasyncgen(items):
                async for item in items:
                    yield item
            else:
                for item in items:
                    yield item
        except _INTERRUPTED:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            failure = portable(strip_frames(error, __file__))
        if failure is not None:
            raise failure

    return _bounded(_named(method, name))


def _bounded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let Ray hold the producer when its consumer is far behind."""
    bounded: Callable[..., Any] = ray.method(_generator_backpressure_num_objects=STREAM_BUFFER)(method)
    return bounded
