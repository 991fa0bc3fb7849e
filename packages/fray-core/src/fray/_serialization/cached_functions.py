"""Functions under `functools.cache` or `lru_cache` that no other process can import: those of a script.

cloudpickle sends a plain function of `__main__` by value, but such a wrapper by its name, which the other
process does not find. So the wrapper travels as what it wraps, and begins there with an empty cache.
"""

import functools
from typing import Any

from fray._serialization.captures import found_by_name

CachedFunction = type(functools.lru_cache(len))


def reduce_cached(wrapper: Any) -> Any:
    """Return a cached function's pickle: its name where others find it by that, else what it wraps."""
    return wrapper.__qualname__ if found_by_name(wrapper) else (_wrapped_again, _parts(wrapper))


def _parts(wrapper: Any) -> tuple[Any, ...]:
    limits = wrapper.cache_parameters()
    return wrapper.__wrapped__, limits["maxsize"], limits["typed"]


def _wrapped_again(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)
