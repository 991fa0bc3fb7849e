"""What a queue on an engine needs of it: one call each, done by the engine as a whole or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fray import FrayError, QueueUnavailableError
from fray.backend import PushOptions
from fray.queue import Attempt, Lease, Reply
from fray_queue._engines.idempotency import IdempotencyKey
from fray_queue._items import EncodedReply, Settings

Verb = Literal["requeue", "purge", "purge_dead"]
"""What an operator requests: put dead items back in line, remove those that are not dead, remove the dead."""


_LONGEST_ERROR = 2000  # characters


class TransientError(FrayError, ConnectionError):
    """The engine could not be asked, or its answer was lost; the same request may be made again."""


class DeletedQueueError(QueueUnavailableError):
    """The queue was deleted while it was open, or the engine lost it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"queue {self.name!r} is not there any more: it was deleted, or the engine lost it"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller waits for: items, room for more, answers to these items."""

    items: bool = False
    room: bool = False
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """How many items of a queue are where; `dropped` are dead letters beyond `max_dead`."""

    pending: int
    held: int
    dead: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead item; `place` is its place in line, `size` that of its payload, which may not have been read."""

    place: int
    item_id: str
    payload: bytes
    size: int
    attempt: int
    history: tuple[Attempt, ...]
    expired: bool


class EngineStore(Protocol):
    """One queue on an engine. A call that fails with a `TransientError` is made again under the same key."""

    tells_what: bool
    """Whether `wait` returns what changed; else it returns all that was wanted."""

    def open(self, settings: Settings) -> Settings:
        """Make the queue if need be, bring it up to this release's version, return its settings."""

    def exists(self) -> bool: ...

    def push(self, key: IdempotencyKey, payloads: Sequence[bytes], options: PushOptions) -> list[str]: ...

    def pop(
        self, key: IdempotencyKey, n: int, lease_timeout: float, *, token: str, woken: bool
    ) -> tuple[list[Lease[bytes]], float | None]:
        """Lease items; where there is none, return in how many seconds one may become free.

        Args:
            token: Ends the leases' ids; of this call alone.
            woken: Whether the caller was woken for an item, so that others may wait for the next.
        """

    def done(
        self, key: IdempotencyKey, lease_ids: Sequence[str], answers: Sequence[EncodedReply | None]
    ) -> list[str]: ...

    def release(
        self,
        key: IdempotencyKey,
        lease_id: str,
        delay: float,
        *,
        error: str | None = None,
        failure: bytes | None = None,
        unreadable: str | None = None,
    ) -> bool:
        """Give an item back, or set it aside where it was `unreadable`; False when the lease is lost."""

    def extend(self, lease_ids: Sequence[str], lease_timeout: float) -> list[float | None]: ...

    def give_back(self, lease_ids: Sequence[str]) -> None: ...

    def peek(self) -> tuple[str, bytes] | None: ...

    def counts(self) -> Counts: ...

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item that is not dead; None where there is none."""

    def dead(self, after: int, most: int, *, payloads: bool) -> list[Letter]:
        """Return dead letters behind a place in line, in line; without `payloads` their sizes alone."""

    def fetch(self, key: IdempotencyKey, item_ids: Sequence[str]) -> tuple[list[Reply], float | None]:
        """Return what became of items, and in how many seconds more of them may be over by themselves."""

    def operate(self, key: IdempotencyKey, verb: Verb, item_ids: Sequence[str] | None = None) -> int:
        """Do what an operator requests, to these items, or to all where None is given; return how many."""

    def delete(self) -> None: ...

    def stored(self) -> tuple[bool, str]:
        """Return whether a push that returned outlives a crash of the engine's machine, and why."""

    def wait(self, wanted: Wanted, seconds: float, *, alarm: str = "") -> Wanted:
        """Return which of these may be there, when the engine notifies; nothing after so long.

        Args:
            alarm: A name, by which `ring` ends the wait.
        """

    def ring(self, alarm: str) -> None:
        """End a wait, in whatever thread."""

    def pass_on(self, told: Wanted) -> None:
        """Have the engine notify another process of what this one no longer waits for."""

    def close(self) -> None: ...


class Engine(Protocol):
    """An engine, by its address: many queues by name."""

    def store(self, name: str) -> EngineStore:
        """Return the store of a queue; without a request to the engine."""

    def check(self) -> None:
        """Check that the engine answers.

        Raises:
            TransientError: It is not.
            AccessRefusedError: It refuses the user.
        """

    def counts(self) -> dict[str, Counts]:
        """Return the counts of all queues by name; what ran out meanwhile is not looked for."""

    def close(self) -> None:
        """Release the connections."""


def stored_text(error: str | None) -> str:
    """Return what engines keep of an error: its beginning; a surrogate, which is no text, is escaped."""
    return (error or "")[:_LONGEST_ERROR].encode("utf-8", "backslashreplace").decode()


def token_of(lease_id: str) -> tuple[int, str]:
    """Take a lease's id apart: the place of its item, and its token; zero for an id that no engine gave."""
    place, _, token = lease_id.partition(".")
    try:
        number = int(place, 16)
    except ValueError:
        return 0, ""
    return (number, token) if 0 < number < 1 << 48 and token else (0, "")
