"""Functions on their way to the workers: pickled once where that is safe, stored once where large."""

import hashlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import ray

from fray.backend import callable_name, captures, same_captures
from fray_ray._context.captured import Captured, dumps_apart
from fray_ray._ray_internals.class_identity import share_class_ids

K = TypeVar("K")
V = TypeVar("V")

_INLINE = 64 * 1024  # bytes that travel with each call; what is larger is put into the object store once
_KEPT = 256
_KEPT_BYTES = 64 * 1024 * 1024

share_class_ids()  # before a function is pickled here, and before a worker loads one


class Latest(Generic[K, V]):
    """The values added last, so many of them and of so many bytes together; the very last in any case."""

    def __init__(self, most: int = _KEPT, most_bytes: int = _KEPT_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: dict[K, tuple[V, int]] = {}

    def get(self, key: K) -> V | None:
        """Return the value that is kept for a key."""
        kept = self._kept.get(key)
        return None if kept is None else kept[0]

    def add(self, key: K, value: V, size: int) -> None:
        """Keep a value, and so many fewer of the earlier ones."""
        self._kept.pop(key, None)
        self._kept[key] = value, size
        entries = list(self._kept.items())  # a copy: threads and finalizers come in between
        too_many = len(entries) - self._most
        too_large = sum(size for _, (_, size) in entries) - self._most_bytes
        for old, (_, size) in entries[:-1]:
            if too_many <= 0 and too_large <= 0:
                return
            self._kept.pop(old, None)
            too_many -= 1
            too_large -= size


class Payloads:
    """The pickled functions of one context.

    A function is pickled once, as long as what it refers to is known to be the same. Any other is pickled at
    every call; workers load what they know by its bytes. One that holds references or handles is kept
    nowhere, because they would be held with it.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._pickled: Latest[tuple[int, bool], tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = Latest()
        self._stored: Latest[bytes, Any] = Latest()

    def of(self, target: Callable[..., Any], accelerated: bool) -> tuple[Any, ...]:
        """Return what a worker needs to call `target`, as arguments before those of the user.

        The first is bytes, or the reference of stored ones; the second, if any, what `target` holds.
        """
        key = id(target), accelerated
        known = self._pickled.get(key)
        if known is not None and known[0] is target and same_captures(known[1], target):
            return known[2]
        what = f"the function {callable_name(target)}"
        data, held = dumps_apart((target, self._context, accelerated), what)
        payload = (data if len(data) < _INLINE else self._store(data),)
        if held:
            return *payload, Captured(held)
        captured = captures(target)
        if captured is not None:
            self._pickled.add(key, (target, captured, payload), len(data))
        return payload

    def _store(self, data: bytes) -> Any:
        digest = hashlib.sha256(data).digest()
        ref = self._stored.get(digest)
        if ref is None:
            ref = ray.put(data)
        self._stored.add(digest, ref, len(data))  # the last one now, if it was not
        return ref
