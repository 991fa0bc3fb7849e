"""Functions and classes that run with the named actors of the context that sent them.

What runs them is a context of this machine, which has other named actors, or none. So each enters its own
context where it runs, whatever kind of callable it is.
"""

import contextlib
import functools
import threading
import types
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Any

from fray.backend import (
    WrappedClass,
    callable_name,
    current_context_var,
    is_async_function,
    is_generator_function,
)
from fray.job import use_context

_END = object()
_caller: ContextVar[Any] = ContextVar("fray_iris_caller")


def caller_here() -> Hashable:
    """Return what calls of one caller have in common: the task, or the actor's call, or else the thread."""
    found: Hashable = _caller.get(None)
    return threading.get_ident() if found is None else found


@contextlib.contextmanager
def _within(enter: Callable[[], Any]) -> Iterator[None]:
    """Be a task, or an actor's call, that runs in a context of its own."""
    context = enter()
    token = _caller.set(context)
    try:
        with use_context(context):
            yield
    finally:
        _caller.reset(token)


class InContext:
    """A function that runs in a context; like a `functools.partial`, it has the real one as `func`.

    Args:
        enter: Returns the context, where the function runs.
    """

    def __init__(self, func: Callable[..., Any], enter: Callable[[], Any]) -> None:
        self.func = self.__wrapped__ = func
        self.__qualname__ = callable_name(func)  # of what a partial calls
        self._enter = enter

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_generator_function(self.func):
            stream = self._async_stream if is_async_function(self.func) else self._stream
            return stream(args, kwargs)
        with _within(self._enter):
            value = self.func(*args, **kwargs)
        return self._await(value) if type(value) is types.CoroutineType else value

    # A coroutine, and an async generator, has context variables of its own: they are set for all of it.

    def _set_for_all(self) -> None:
        context = self._enter()
        current_context_var.set(context)
        _caller.set(context)

    async def _await(self, coroutine: Any) -> Any:
        self._set_for_all()
        return await coroutine

    async def _async_stream(self, args: Any, kwargs: Any) -> AsyncIterator[Any]:
        self._set_for_all()
        async with contextlib.aclosing(self.func(*args, **kwargs)) as items:
            async for item in items:
                yield item

    def _stream(self, args: Any, kwargs: Any) -> Iterator[Any]:
        enter, items = functools.cache(self._enter), self.func(*args, **kwargs)  # one context for all
        try:
            while True:
                with _within(enter):  # for each item: its thread does other things in between
                    item = next(items, _END)
                if item is _END:
                    return
                yield item
        finally:
            with _within(enter):
                items.close()


def in_context(fn: Callable[..., Any], enter: Callable[[], Any]) -> Callable[..., Any]:
    """Return a task's function that runs in a context; a partial stays one, so that it keeps its name."""
    if type(fn) is functools.partial:
        return functools.partial(in_context(fn.func, enter), *fn.args, **fn.keywords)
    return InContext(fn, enter)


def class_in_context(cls: Callable[..., Any], enter: Callable[[], Any]) -> WrappedClass:
    """Return an actor's class whose constructor and methods run in a context."""
    return WrappedClass(cls, functools.partial(_within, enter), functools.partial(_method, enter))


def _method(enter: Callable[[], Any], _name: str, method: Callable[..., Any]) -> InContext:
    return InContext(method, enter)
