"""What a function refers to: whether its pickle can be used again, or it may mean something else by now."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

_IMMUTABLE = frozenset({int, float, bool, complex, type(None), str, bytes, types.ModuleType})


def captures(fn: Callable[..., Any]) -> tuple[Any, ...] | None:
    """Return everything a function refers to, where all of it is immutable.

    Returns:
        Nothing where only its name travels; None where what it refers to may change unseen, so that it has
        to be pickled for each call.
    """
    if found_by_name(fn):
        return ()
    found: dict[int, Any] = {}
    if not _collect(fn, found):
        return None
    del found[id(fn)]  # what keeps the captured objects must not keep the function
    return fn.__code__, *found.values()


def same_captures(before: tuple[Any, ...], fn: Callable[..., Any]) -> bool:
    """Whether a function refers to what it did when `captures` returned `before`."""
    if not before:
        return True
    found: dict[int, Any] = {}
    if not _collect(fn, found):
        return False
    del found[id(fn)]
    now = (fn.__code__, *found.values())
    return len(before) == len(now) and all(map(lambda a, b: a is b, before, now))


def found_by_name(fn: Any) -> bool:
    """Whether a worker finds it by its name alone."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "<locals>")
    if type(fn) is types.BuiltinFunctionType:
        return True
    if module is None or module == "__main__" or "<locals>" in name or not is_importable(module):
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is fn


@functools.cache
def is_importable(name: str) -> bool:
    """Whether a process with the same path finds the module; a loaded one may not come from a file."""
    path, parts = None, name.split(".")
    for end in range(1, len(parts) + 1):
        full = ".".join(parts[:end])
        spec = _find(full, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def _find(name: str, path: Any) -> Any:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec and find_spec(name, path)
        if spec is not None:
            return spec
    # What a package makes of its attributes (six.moves, os.path) is there once the package is.
    parent = sys.modules.get(name.rpartition(".")[0])
    return getattr(sys.modules.get(name), "__spec__", None) if parent is not None and path is None else None


def _collect(value: Any, found: dict[int, Any]) -> bool:
    if id(value) in found:
        return True
    found[id(value)] = value
    kind = type(value)
    if kind in _IMMUTABLE:
        return True
    if kind is tuple or kind is frozenset:
        return all(_collect(part, found) for part in value)
    if callable(value) and found_by_name(value):
        return True
    if kind is not types.FunctionType or value.__dict__:
        return False
    try:
        parts = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # a cell that has no value yet
        return False
    parts += [value.__code__, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    parts += [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
    return all(part is value.__code__ or _collect(part, found) for part in parts)


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return frozenset(names)
