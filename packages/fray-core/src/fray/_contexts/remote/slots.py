"""The values of a call's references on their way: packed, or brought by the engine."""

from collections.abc import Sequence
from typing import Any

from fray._contexts.remote.session import SessionContext
from fray._contexts.remote.values import (
    SerializedBytes,
    SerializedError,
    SerializedValue,
    StoredKey,
    outcome_of,
)
from fray._contracts.remote_engine import CallFailed, Key


def slots_of(context: SessionContext, refs: Sequence[Any]) -> tuple[list[bytes | None], list[Key]]:
    """Return the values of settled references, and the keys of those that the engine brings."""
    slots: list[bytes | None] = []
    keys: list[Key] = []
    for ref in refs:
        content = ref.content
        if isinstance(content, StoredKey) and content.data is None:
            slots.append(None)
            keys.append(content.key)
        elif isinstance(content, SerializedValue):
            slots.append(content.packed.data)
        elif isinstance(content, StoredKey):
            slots.append(content.data)
        else:
            slots.append(_packed_now(context, ref).data)
    return slots, keys


def _packed_now(context: SessionContext, ref: Any) -> SerializedBytes:
    packed = outcome_of(context, ref)
    if isinstance(packed, CallFailed):
        raise SerializedError(packed).load()
    return packed
