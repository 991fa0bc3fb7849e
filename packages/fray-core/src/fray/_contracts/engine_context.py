"""The contract of a remote engine: one that resolves dependencies and stores values itself, as Dask does.

Such an engine keeps most of the books that ours keeps for a `TaskRunner`: it is given a call with the keys
of what it depends on, runs it where those values are, and keeps the result until it is released. Of our
engine the order of an actor's calls, streams and the scope of a context are used, and nothing else.

Tried on Dask (`distributed` 2026.8): each primitive is a few lines there. Dask runs a task again whose
worker died unless `distributed.scheduler.allowed-failures` is 0; and it promises no order on one
worker, so the calls of an actor are submitted one after the other's end, or each depends on the last.

Everything that crosses is bytes that Fray packed and unpacks in the worker: the engine's own serializer
sees no object of the user.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fray._values.options import TaskOptions

Key = str
"""What the engine calls a value that is there or will be; unique in the engine."""


class EngineOutcome(NamedTuple):
    """How a key ended."""

    fine: bool
    """Whether there is a value; else `data` is a packed exception, or None where it was lost."""
    data: bytes | None
    cancelled: bool = False
    died: str | None = None
    """How the worker ended, where it did: the call raises WorkerDiedError, or is run again."""


class EngineContext(Protocol):
    """The primitives of a remote engine. Only `fetch` and `close` block; any thread may call them."""

    def submit(
        self, call: bytes, dependencies: Sequence[Key], options: TaskOptions, *, on_worker: str | None = None
    ) -> Key:
        """Run a packed call when its dependencies have values, and return the key of its result.

        The worker unpacks and runs it with the values of the dependencies, as bytes, in their order.
        The engine must not run it a second time by itself: `max_retries` is counted by Fray.

        Args:
            on_worker: Run it on that worker; of an actor's calls, whose order the context keeps.
        """

    def store(self, value: bytes) -> Key:
        """Keep a packed value, and return its key."""

    def fetch(self, key: Key, timeout: float | None) -> EngineOutcome:
        """Return how a key ended, waiting for that; the one primitive that moves a value to the caller.

        Raises:
            TimeoutError: It has not ended.
        """

    def when_done(self, key: Key, act: Callable[[Key], None]) -> None:
        """Call `act` once when a key has ended, on a thread of the engine; at once where it has already.

        `act` does not block, and moves no value.
        """

    def cancel(self, key: Key) -> bool:
        """Stop a call that has not started, or one that has where the engine can; say whether it did."""

    def retain(self, keys: Sequence[Key]) -> None:
        """Keep values for one more holder: somebody else was handed the keys."""

    def release(self, keys: Sequence[Key]) -> None:
        """Let a holder go; what nobody holds may be forgotten. It may be called from a finalizer."""

    def choose_worker(self, resources: Mapping[str, float]) -> str:
        """Return a worker that an actor will live on, and reserve what it asks for until `leave_worker`."""

    def leave_worker(self, worker: str) -> None:
        """Give back what was reserved for an actor."""

    def register(self, name: str, record: bytes | None, *, replace: bool = False) -> bytes | None:
        """Register a name for all clients of the engine, atomically; None as record removes it.

        Returns:
            The record that was there, which stays unless `replace`.
        """

    def look_up(self, name: str) -> bytes | None:
        """Return the record of a name."""

    def capacity(self) -> Mapping[str, Any]:
        """Return what the workers have in all: `CPU` at least; `map` keeps that many busy."""

    def close(self, *, wait: bool) -> None:
        """Let go of every key of this client; the engine itself goes on for others."""
