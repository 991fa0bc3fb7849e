"""Items as bytes: pickled where they are pushed, unpickled where they are popped, opaque in between."""

import pickle
from collections.abc import Iterable
from typing import Any

from fray.backend import dumps

_PLAIN = frozenset({bytes, str, int, float, bool, type(None)})  # by exact class: they need no cloudpickle


def encode(item: Any) -> bytes:
    """Pickle an item; what cannot be pickled is a SerializationError."""
    if item.__class__ in _PLAIN:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    return dumps(item, f"the item {type(item).__name__}")


def encode_many(items: Iterable[Any]) -> list[bytes]:
    """Pickle items, all of them or none."""
    return [encode(item) for item in items]
