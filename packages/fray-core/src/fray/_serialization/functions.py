"""Recognize generator functions, which make streaming tasks, and async classes."""

import inspect
from collections.abc import Callable
from typing import Any

GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_generator_function(fn: Callable[..., Any]) -> bool:
    """Return whether calling it gives a generator, or an async generator.

    Looks through partials, methods, callable objects, and what listeners wrap around a function.
    """
    return bool(_flags(fn) & GENERATOR)


def is_async_function(fn: Callable[..., Any]) -> bool:
    """Return whether it was written with `async def`; looks through the same things."""
    return bool(_flags(fn) & _ASYNC)


def is_async_class(cls: Any) -> bool:
    """Return whether a class has an async method: its actors keep one event loop for their life."""
    names = (name for name in dir(cls) if not name.startswith("__"))
    return any(is_async_function(member) for name in names if callable(member := getattr(cls, name, None)))


def _flags(fn: Any) -> int:
    while True:
        code = getattr(fn, "__code__", None)  # a function's, and through it a bound method's
        if code is not None:
            return int(code.co_flags)
        if hasattr(fn, "func"):  # functools.partial
            fn = fn.func
        elif isinstance(fn, type) or not hasattr(type(fn).__call__, "__code__"):
            return 0
        else:
            fn = type(fn).__call__
