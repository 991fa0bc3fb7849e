"""Calls and values on their way to another process.

A function is shipped apart from its arguments, named by the hash of its pickle, so that a worker
that has it is not sent it again. A module's function is pickled once; one that captured something
is pickled once as long as what it captured cannot have changed.
"""

import functools
import gc
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from fray import SerializationError
from fray.backend import (
    callable_name,
    captures,
    dumps_call,
    function_pickler,
    is_importable,
    keeping,
    same_captures,
)
from fray_local._process.protocol.values import LARGE, Blob, Budget, lay_out

Position = int | str
"""Where an argument stands: its position, or its keyword."""

_ATOMS = frozenset({int, float, bool, complex, type(None)})
_TEXTS = frozenset({str, bytes})
_SMOOTHING = 0.3
_NAMED_IN_MODULES = (types.FunctionType, type)


@dataclass(eq=False, slots=True, weakref_slot=True)
class SerializedFunction:
    """A function as it is shipped."""

    key: bytes
    data: bytes
    keeps: tuple[Any, ...] = ()
    captured: tuple[Any, ...] | None = ()  # what it was pickled with; None where that may change unseen
    seconds: float | None = None  # what a call of it takes, once one is known to

    def took(self, seconds: float) -> None:
        """Record what a call has taken."""
        known = self.seconds
        self.seconds = seconds if known is None else known + _SMOOTHING * (seconds - known)


@dataclass(slots=True)
class SerializedCall:
    """A call in its travelling form; references are left out, and arrive as values at `places`."""

    function: SerializedFunction | None
    blob: Blob
    places: Sequence[Position]


def pack(value: Any, what: str, budget: Budget) -> Blob:
    """Pickle a value.

    Args:
        what: The value as an error should call it.

    Raises:
        SerializationError: It cannot be pickled.
        ObjectStoreFullError: It is large, and there is no room.
    """
    if _is_small(value):
        return Blob(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    stream, buffers, keeps = _dump(value, what)
    return lay_out(stream, buffers, budget, keeps)


def serialize_call(
    fn: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reference: type,
    budget: Budget,
) -> tuple[SerializedCall, Sequence[Any]]:
    """Pickle a call; return it with the references of the given type that stood among its arguments.

    Args:
        fn: None where the other side knows what is called.

    Raises:
        SerializationError: A part cannot be pickled; the message names that part.
    """
    places: Sequence[Position] = ()
    refs: Sequence[Any] = ()
    if kwargs or reference in map(type, args):
        found = {place: arg for place, arg in enumerate(args) if type(arg) is reference}
        found |= {name: arg for name, arg in kwargs.items() if type(arg) is reference}  # type: ignore[misc]
        args = tuple(None if type(arg) is reference else arg for arg in args)
        kwargs = {name: arg for name, arg in kwargs.items() if name not in found}  # type: ignore[comparison-overlap]
        places, refs = list(found), list(found.values())
    function = None if fn is None else serialized_function(fn)
    inline = fn if function is None else None
    if inline is None and not kwargs and all(map(_is_small, args)):
        blob = Blob(pickle.dumps((None, args, kwargs), pickle.HIGHEST_PROTOCOL))
        return SerializedCall(function, blob, places), refs
    try:
        stream, buffers, keeps = _dump((inline, args, kwargs), "the call")
    except SerializationError:
        dumps_call(fn or _a_method, args, kwargs)  # names the part
        raise
    return SerializedCall(function, lay_out(stream, buffers, budget, keeps), places), refs


_functions: "WeakKeyDictionary[Callable[..., Any], SerializedFunction]" = WeakKeyDictionary()


def serialized_function(fn: Callable[..., Any]) -> SerializedFunction | None:
    """Return a function or a class as it is shipped; None for callables that travel with their arguments.

    Raises:
        SerializationError: It cannot be pickled.
    """
    if not _is_plain(fn):
        return None
    try:
        known = _functions.get(fn)
    except TypeError:  # a class that cannot be hashed
        return None
    if known is not None and known.captured is not None and same_captures(known.captured, fn):
        return known
    load_pickler()
    import hashlib

    stream, buffers, keeps = _dump(fn, f"the function {callable_name(fn)}", out_of_band=False)
    assert not buffers
    data = b"".join(stream)
    key = hashlib.blake2b(data, digest_size=16).digest()
    if known is not None and known.key == key:
        return known
    function = SerializedFunction(key, data, tuple(keeps), captures(fn))
    if known is not None:
        function.seconds = known.seconds
    _functions[fn] = function
    return function


def _is_plain(fn: Any) -> bool:
    """Whether it carries no state of its own, as a partial, a bound method or an object does."""
    if type(fn) is types.BuiltinFunctionType:
        return fn.__self__ is None or type(fn.__self__) is types.ModuleType
    return type(fn) is types.FunctionType or isinstance(fn, type)


def _a_method() -> None: ...


def _is_small(value: Any) -> bool:
    kind = type(value)
    return kind in _ATOMS or (kind in _TEXTS and len(value) < LARGE)


def _dump(
    value: Any, what: str, *, out_of_band: bool = True
) -> tuple[list[bytes], list[memoryview], list[Any]]:
    stream: list[bytes] = []
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        buffers.append(raw)
        return False

    pickler = _pickler_class()(
        _Sink(stream.append), pickle.HIGHEST_PROTOCOL, keep_in_band if out_of_band else None
    )
    try:
        with keeping() as keeps:
            pickler.dump(value)
    except (SerializationError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the panic of a library in Rust, too
        raise SerializationError(what, f"{type(error).__name__}: {error}") from error
    return stream, buffers, keeps


class _Sink:
    """A file for a pickler; large bytes come through it uncopied."""

    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write


def load_pickler() -> None:
    """Import what pickles functions, so that no signal handler finds that half imported."""
    _pickler_class()


@functools.cache
def _pickler_class() -> Any:
    # With the collector off: a finalizer that runs a task would find the modules half imported.
    collecting = gc.isenabled()
    gc.disable()
    try:
        import hashlib  # noqa: F401 - loaded here for `serialized_function`

        base: Any = function_pickler()  # 20 ms that a worker of plain numbers and text does not pay
    finally:
        if collecting:
            gc.enable()

    class Pickler(base):  # type: ignore[misc]
        """cloudpickle, which lets what belongs to a module that no worker can import travel by value."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, _NAMED_IN_MODULES):
                _check_module(obj.__module__)
            return super().reducer_override(obj)

    return Pickler


@functools.cache
def _check_module(name: str | None) -> None:
    """Let what belongs to a module that a worker cannot import travel by value."""
    module = sys.modules.get(name or "__main__")
    if name and module is not None and name != "__main__" and not is_importable(name):
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)
