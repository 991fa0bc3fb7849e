"""Tell a generator function, which makes a streaming task, from any other callable."""

import inspect
from collections.abc import Callable
from typing import Any


def is_generator_function(fn: Callable[..., Any]) -> bool:
    """Return whether calling it gives a generator; looks through partials, methods and callable objects."""
    while True:
        code = getattr(fn, "__code__", None)  # a function's, and through it a bound method's
        if code is not None:
            return bool(code.co_flags & inspect.CO_GENERATOR)
        if hasattr(fn, "func"):  # functools.partial
            fn = fn.func
        elif isinstance(fn, type) or not hasattr(type(fn).__call__, "__code__"):
            return False
        else:
            fn = type(fn).__call__
