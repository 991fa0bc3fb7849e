"""Values, failures and arguments as they cross: pickles, with a table of the references that they name."""

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol
from weakref import finalize

from fray._contracts.refs import ObjectRef
from fray._contracts.remote_engine import CallFailed, Key
from fray._contracts.task_runner import StoredError, StoredValue
from fray._engine.calls import dispatch
from fray._engine.identity import finding, identity_of, keeping
from fray._engine.refs import ERROR, EngineRef, ref_of_future
from fray._serialization.values import dumps, dumps_call, pack_exception, unpack_exception
from fray._values.errors import SerializationError, TaskCancelledError

_PLAIN, _NAMING = b"\0", b"\1"


class Traveller(Protocol):
    """What knows how references, handles and contexts are called elsewhere: a context."""

    def describe(self, thing: Any) -> Any:
        """Return what makes a thing's counterpart elsewhere; None for what cannot travel."""

    def arrive(self, description: Any) -> Any:
        """Return the counterpart here."""

    def fetch(self, key: Key) -> bytes:
        """Return the value of a key."""

    def release(self, key: Key) -> None:
        """Release a key."""


class SerializedBytes(NamedTuple):
    """Bytes that travel, and what they name, which has to live until they have arrived."""

    data: bytes
    kept: Sequence[Any]


def pack(traveller: Traveller, value: Any, what: str) -> SerializedBytes:
    """Pack a value.

    Raises:
        SerializationError: It cannot be pickled; `what` names it.
    """
    with keeping() as kept:
        body = dumps(value, what)
    return _sealed(traveller, body, kept)


def pack_call(
    traveller: Traveller, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SerializedBytes:
    """Pack a function and its arguments.

    Raises:
        SerializationError: A part cannot be pickled; the message names that part.
    """
    with keeping() as kept:
        body = dumps_call(fn, args, kwargs)
    return _sealed(traveller, body, kept)


def _sealed(traveller: Traveller, body: bytes, kept: list[Any]) -> SerializedBytes:
    if not kept:
        return SerializedBytes(_PLAIN + body, ())
    table = {}
    for thing in kept:
        process, _, number, _ = identity_of(thing)
        table[process, number] = traveller.describe(thing)
    return SerializedBytes(_NAMING + pickle.dumps((table, body)), kept)


def unpack(traveller: Traveller, data: bytes) -> Any:
    """Return what was packed, with counterparts of what it names."""
    inside = memoryview(data)[1:]
    if data[:1] == _PLAIN:
        return pickle.loads(inside)
    table, body = pickle.loads(inside)

    def find(process: str, number: Any) -> Any:
        description = table.get((process, number))
        return None if description is None else traveller.arrive(description)

    with finding(find):
        return pickle.loads(body)


class Slot(NamedTuple):
    """Stands in the arguments for the value of a reference."""

    number: int


def with_slots(
    args: tuple[Any, ...], kwargs: dict[str, Any], traveller: Traveller
) -> tuple[tuple[Any, ...], dict[str, Any], list[EngineRef[Any]]]:
    """Return arguments with slots in the place of references and futures, and these references."""
    refs: list[EngineRef[Any]] = []

    def slotted(value: Any) -> Any:
        if isinstance(value, Future):
            value = packed_ref_of_future(value, traveller)
        if not isinstance(value, ObjectRef) or type(value) is not EngineRef:
            return value
        refs.append(value)
        return Slot(len(refs) - 1)

    return tuple(map(slotted, args)), {key: slotted(value) for key, value in kwargs.items()}, refs


def filled(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with values in the place of slots."""
    if not values:
        return args, kwargs
    args = tuple(values[arg.number] if type(arg) is Slot else arg for arg in args)
    return args, {key: values[arg.number] if type(arg) is Slot else arg for key, arg in kwargs.items()}


def packed_ref_of_future(future: "Future[Any]", traveller: Traveller) -> EngineRef[Any]:
    """Return a reference that settles as a future does; its value is packed on the future's thread."""

    def packed(value: Any) -> SerializedValue:
        return SerializedValue(traveller, pack(traveller, value, "the future's result"))

    return ref_of_future(future, dispatch, packed)


class SerializedValue(StoredValue):
    """A value that is here, packed: each reader gets a copy of its own."""

    __slots__ = ("_traveller", "packed")

    def __init__(self, traveller: Traveller, packed: SerializedBytes) -> None:
        self._traveller, self.packed = traveller, packed

    def load(self) -> Any:
        """Return a fresh copy."""
        return unpack(self._traveller, self.packed.data)


class StoredKey(StoredValue):
    """A value that the engine keeps for as long as this lives.

    Attributes:
        data: The packed value, where it was fetched ahead.
    """

    __slots__ = ("__weakref__", "_traveller", "data", "kept", "key")

    def __init__(self, traveller: Traveller, key: Key, release: Callable[[Key], None]) -> None:
        self._traveller, self.key = traveller, key
        self.data: bytes | None = None
        self.kept: Any = ()  # what the value names, where it was stored here
        finalize(self, release, key).atexit = False

    def load(self) -> Any:
        """Return the value; the engine moves it here."""
        data = self.data
        return unpack(self._traveller, self._traveller.fetch(self.key) if data is None else data)


class SerializedError(StoredError):
    """A failure that came from elsewhere."""

    __slots__ = ("failed",)

    def __init__(self, failed: CallFailed) -> None:
        self.failed = failed

    @property
    def cancelled(self) -> bool:
        """Whether it is a TaskCancelledError."""
        return self.failed.cancelled

    def load(self) -> BaseException:
        """Return the exception, with the traceback that it had there in a note."""
        return unpack_exception(self.failed.data)


def failed_with(error: BaseException) -> CallFailed:
    """Return an exception as it travels."""
    text = None if error.__traceback__ else ""
    packed = pack_exception(error, traceback_text=text)
    return CallFailed(packed, isinstance(error, TaskCancelledError))


def outcome_of(traveller: Traveller, ref: EngineRef[Any]) -> SerializedBytes | CallFailed:
    """Return what a settled reference has, packed."""
    content = ref.content
    if ref.state == ERROR:
        return content.failed if isinstance(content, SerializedError) else failed_with(content.load())
    if isinstance(content, SerializedValue):
        return content.packed
    try:
        value = content.load() if isinstance(content, StoredValue) else content
        return pack(traveller, value, "a value that was passed on")
    except SerializationError as error:
        return failed_with(error)
