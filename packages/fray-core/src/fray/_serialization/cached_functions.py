"""Functions under `functools.cache` or `lru_cache` that no other process can import: those of a script.

cloudpickle sends a plain function of `__main__` by value, but such a wrapper by its name, which the other
process does not find. So the wrapper travels as what it wraps, and begins there with an empty cache.
"""

import functools
from typing import Any

from fray._serialization.captures import found_by_name

_Wrapper = type(functools.lru_cache(len))


def let_cached_functions_travel(pickler: Any) -> None:
    """Let a pickler of cloudpickle, a class, send cached functions by value where it sends functions so."""
    pickler.dispatch_table.setdefault(_Wrapper, _reduce)


def _reduce(wrapper: Any) -> Any:
    return wrapper.__qualname__ if found_by_name(wrapper) else (_wrapped_again, _parts(wrapper))


def _parts(wrapper: Any) -> tuple[Any, ...]:
    limits = wrapper.cache_parameters()
    return wrapper.__wrapped__, limits["maxsize"], limits["typed"]


def _wrapped_again(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)
