"""Functions on their way to the workers: pickled once where that is safe, stored once where large."""

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import ray

from fray.backend import callable_name, dumps

_INLINE = 64 * 1024  # bytes that travel with each call; what is larger is put into the object store once
_KEPT = 256


class Payloads:
    """The pickled functions of one context.

    A function that workers import by its name is pickled once. Any other is pickled at every call,
    because what it refers to may have changed since; workers load what they know by its bytes.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._imported: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self._stored: OrderedDict[bytes, Any] = OrderedDict()

    def of(self, target: Callable[..., Any], accelerated: bool) -> Any:
        """Return what a worker needs to call `target`: bytes, or the reference of stored ones."""
        key = id(target), accelerated
        known = self._imported.get(key)
        if known is not None and known[0] is target:
            return known[1]
        data = dumps((target, self._context, accelerated), f"the function {callable_name(target)}")
        payload = data if len(data) < _INLINE else self._store(data)
        if is_importable(target):
            if len(self._imported) >= _KEPT:
                self._imported.clear()
            self._imported[key] = target, payload
        return payload

    def _store(self, data: bytes) -> Any:
        digest = hashlib.sha256(data).digest()
        if digest not in self._stored:
            self._stored[digest] = ray.put(data)
            if len(self._stored) > _KEPT:
                self._stored.popitem(last=False)
        self._stored.move_to_end(digest)
        return self._stored[digest]


def is_importable(target: Any) -> bool:
    """Whether a worker gets the same by importing its module."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module in (None, "__main__") or name is None or "<locals>" in name:
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is target
