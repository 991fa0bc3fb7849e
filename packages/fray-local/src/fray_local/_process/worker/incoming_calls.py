"""What a worker is sent: calls, and functions, which it keeps by key."""

import contextlib
import pickle
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from fray import TaskCancelledError
from fray.backend import callable_name, keeping, pack_exception, strip_frames
from fray_local._process.protocol.messages import Call, FunctionShipment
from fray_local._process.protocol.values import CANCELLED, ERROR, Blob, received


class CachedFunction:
    """A function as it arrived; unpickled by the first call that calls it."""

    __slots__ = ("_data", "_fn")

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data
        self._fn: Any = None

    def fn(self) -> Callable[..., Any]:
        """Return the function."""
        if self._data is not None:
            self._fn, self._data = pickle.loads(self._data), None
        fn: Callable[..., Any] = self._fn
        return fn


class FunctionCache:
    """The functions of a worker; the owner knows which are here, and says when to forget one."""

    def __init__(self) -> None:
        self._cached: dict[bytes, CachedFunction] = {}

    def take(self, shipped: FunctionShipment | None) -> CachedFunction | None:
        """Return the function that a message names, and forget those that it says."""
        if shipped is None:
            return None
        key, data, forgotten = shipped
        if data is not None:
            self._cached[key] = CachedFunction(data)
        cached = self._cached[key]
        for other in forgotten:
            self._cached.pop(other, None)
        return cached


class IncomingCall:
    """One call, from arrived to done; see `messages.Call`."""

    __slots__ = (
        "_blob",
        "_cached",
        "_label",
        "_slots",
        "cancelled",
        "connection",
        "context",
        "credits",
        "generator",
        "in_program",
        "interrupted",
        "kept_item",
        "method",
        "number",
        "on_change",
        "suspended",
    )

    context: Context

    def __init__(
        self,
        connection: Any,
        functions: FunctionCache,
        descriptors: deque[int],
        message: Call,
    ) -> None:
        self.connection = connection  # whose it is
        self.number, function, payload, slots, self.method, self.credits = message
        self._cached = functions.take(function)
        self._blob = received(payload, descriptors)
        self._slots = [(place, received(blob, descriptors, kept=connection.kept)) for place, blob in slots]
        self._label = f"{self.method}()"
        self.generator: Any = None
        self.kept_item: Blob | None = None  # of a stream: made, and not requested yet
        self.on_change: Callable[[], None] | None = None  # called with credits, where a loop runs it
        self.cancelled = self.in_program = self.interrupted = self.suspended = False

    def load(self, instance: Any) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """Return what to call with which arguments, references among them as their values."""
        fn, args, kwargs = self._blob.load()
        if self._cached is not None:
            fn = self._cached.fn()
        elif self.method:
            fn = getattr(instance, self.method)
        self._label = f"{callable_name(fn)}()"
        args = list(args)
        for place, blob in self._slots:
            if isinstance(place, int):
                args[place] = blob.load()
            else:
                kwargs[place] = blob.load()
        self.clear()
        return fn, args, kwargs

    def label(self) -> str:
        """Return what errors call it."""
        return self._label

    def clear(self) -> None:
        """Release the arguments, and with them of their memory."""
        self._blob = Blob(b"")
        self._slots = []
        with contextlib.suppress(AttributeError):
            del self._cached
        self._cached = None


def packed_error(error: BaseException, file: str) -> tuple[int, Blob]:
    """Return an exception as it travels, without the frames of the module that called it, which is `file`."""
    state = CANCELLED if isinstance(error, TaskCancelledError) else ERROR
    return state, blob_of_error(strip_frames(error, file))


def blob_of_error(error: BaseException) -> Blob:
    """Return an exception in its travelling form, with the references inside it."""
    with keeping() as keeps:
        data = pack_exception(error)
    return Blob(data, keeps=keeps)
