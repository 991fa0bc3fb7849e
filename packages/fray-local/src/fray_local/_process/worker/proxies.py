"""What a worker holds of its owner's references, streams and actors: names, which keep those alive."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from fray import WrongProcessError, get_job_context
from fray.backend import EngineEndpoint, find_by_identity, note_kept
from fray.job import ActorEndpoint, ObjectRef, ObjectStream
from fray_local._process.protocol.messages import Next
from fray_local._process.protocol.values import Blob

T_co = TypeVar("T_co", covariant=True)


class Owner:
    """The process that a worker belongs to, and its context, as they are named in pickles."""

    def __init__(self, process: str, pid: int, context_key: Any, context_kind: str) -> None:
        self.process, self.pid = process, pid
        self.context_key, self.context_kind = context_key, context_kind


class Client(Protocol):
    """The worker's way to its owner; see `WorkerContext`."""

    owner: Owner
    refcounts: deque[tuple[Any, int]]

    def ask(self, operation: Any) -> tuple[Any, list[Blob]]:
        """Send a request to the owner, and wait for the answer."""

    def call_actor(
        self,
        endpoint: "RemoteEndpoint",
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        streaming: bool,
    ) -> Any:
        """Queue a call of an actor's method."""


class Proxy:
    """Something in the owner's memory; the owner keeps it for as long as this lives."""

    __slots__ = ("_client", "key")
    _KIND = ""

    def __init__(self, client: Client, key: Any) -> None:
        self._client, self.key = client, key

    def __reduce__(self) -> tuple[Any, ...]:
        note_kept(self)
        owner = self._client.owner
        return find_by_identity, (owner.process, owner.pid, self.key, self._KIND)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and type(other) is type(self) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __del__(self) -> None:
        self._client.refcounts.append((self.key, -1))


class RemoteRef(Proxy, ObjectRef[T_co]):
    """A reference of the owner."""

    __slots__ = ("blob",)
    _KIND = "EngineRef"

    def __init__(self, client: Client, key: Any, blob: Blob | None = None) -> None:
        super().__init__(client, key)
        self.blob = blob  # the value, where it came along

    def __repr__(self) -> str:
        return f"<ref {self.key} of process {self._client.owner.pid}>"


class RemoteStream(Proxy, ObjectStream[T_co]):
    """A stream of the owner."""

    __slots__ = ()
    _KIND = "EngineStream"

    def __next__(self) -> RemoteRef[T_co]:
        key, values = self._client.ask(Next(self.key))
        if key is None:
            raise StopIteration
        return RemoteRef(self._client, key, values[0] if values else None)

    def __repr__(self) -> str:
        return f"<stream {self.key} of process {self._client.owner.pid}>"


class RemoteEndpoint(Proxy, ActorEndpoint):
    """An actor that the owner started, or found."""

    __slots__ = ("_label", "_methods", "address")
    _KIND = "ProcessEndpoint"

    def __init__(
        self, client: Client, key: Any, label: str, methods: Mapping[str, bool], address: Any
    ) -> None:
        super().__init__(client, key)
        self._label, self._methods, self.address = label, methods, address

    @property
    def methods(self) -> Mapping[str, Any]:
        return self._methods

    @property
    def label(self) -> str:
        return self._label

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._client.call_actor(self, method, args, kwargs, self._methods[method])

    def __reduce__(self) -> tuple[Any, ...]:
        note_kept(self)
        owner = self._client.owner
        token = (owner.process, owner.pid, self.key, self._KIND)
        return revive, (token, self._label, self._methods, self.address)


def revive(token: tuple[Any, ...], label: str, methods: Mapping[str, bool], address: Any) -> ActorEndpoint:
    """Return the endpoint of a handle that was pickled, in whatever process."""
    try:
        found: Any = find_by_identity(*token)
    except WrongProcessError:
        endpoint_at = getattr(get_job_context(), "endpoint_at", None)
        if address is None or endpoint_at is None:
            raise
        found_there: ActorEndpoint = endpoint_at(address)
        return found_there
    if isinstance(found, EngineEndpoint):
        return found
    client = found._client  # a plain reference is what a worker makes of a key
    client.refcounts.append((found.key, 1))
    return RemoteEndpoint(client, found.key, label, methods, address)
