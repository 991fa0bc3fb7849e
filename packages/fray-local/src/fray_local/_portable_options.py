"""The options that every context takes: an invalid value is refused alike, also where it is a hint."""

import math
from typing import Any

from fray import ResourceConfig


def check_portable(num_cpus: Any, memory: Any, namespace: Any) -> None:
    """Refuse values that no context could use.

    Raises:
        ValueError: One is out of its range.
    """
    if num_cpus is not None and not (isinstance(num_cpus, int | float) and 0 <= num_cpus < math.inf):
        raise ValueError(f"num_cpus must be a number of 0 or more, got {num_cpus!r}")
    if memory is not None:
        bytes_of(memory)
    if namespace is not None and not isinstance(namespace, str):
        raise ValueError(f"namespace must be a name, got {namespace!r}")


def bytes_of(memory: int | str) -> int:
    """Return the bytes of a size such as `"8g"`.

    Raises:
        ValueError: It is not a size.
    """
    try:
        return ResourceConfig(ram=memory).ram_bytes
    except ValueError as error:
        raise ValueError(f"memory={memory!r} is not a size: {error}") from None
