"""Functions on their way to the workers: pickled once where that is safe, stored once where large."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import ray

from fray.backend import callable_name, captures, dumps, same_captures

_INLINE = 64 * 1024  # bytes that travel with each call; what is larger is put into the object store once
_KEPT = 256


class Payloads:
    """The pickled functions of one context.

    A function is pickled once, as long as what it refers to is known to be the same. Any other is pickled at
    every call; workers load what they know by its bytes.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._pickled: dict[tuple[int, bool], tuple[Any, tuple[Any, ...], Any]] = {}
        self._stored: OrderedDict[bytes, Any] = OrderedDict()

    def of(self, target: Callable[..., Any], accelerated: bool) -> Any:
        """Return what a worker needs to call `target`: bytes, or the reference of stored ones."""
        key = id(target), accelerated
        known = self._pickled.get(key)
        if known is not None and known[0] is target and same_captures(known[1], target):
            return known[2]
        data = dumps((target, self._context, accelerated), f"the function {callable_name(target)}")
        payload = data if len(data) < _INLINE else self._store(data)
        captured = captures(target)
        if captured is not None:
            if len(self._pickled) >= _KEPT:
                self._pickled.clear()
            self._pickled[key] = target, captured, payload
        return payload

    def _store(self, data: bytes) -> Any:
        digest = hashlib.sha256(data).digest()
        if digest not in self._stored:
            self._stored[digest] = ray.put(data)
            if len(self._stored) > _KEPT:
                self._stored.popitem(last=False)
        self._stored.move_to_end(digest)
        return self._stored[digest]
