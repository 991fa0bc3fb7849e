"""The contract of a remote engine: one that runs calls on workers and keeps their results, as Dask does.

`EngineContext` is a whole context over one: Fray supplies what runs in the workers, references and their
counting, futures, streams, actors and the order of their calls, names, worker-side contexts and the end.

Everything that crosses is bytes that Fray packed and that Fray unpacks in the worker: the engine's own
serializer sees no object of the user. Two functions are what an engine calls in its workers:

    fray.backend.run_call(call, values) -> bytes        for `submit`; it raises CallFailed
    fray.backend.answer(request) -> Future[bytes]       for `ask`; it never blocks and never raises

The first primitives make a context of tasks. Each of the others adds what it is needed for, and an engine
that does not have one declares so by not having the method:

    ask             streams and actors
    swap            (with ask) named and detached actors, shared by all programs on the engine
    claim           at most once, and `cancel` of what waits in the engine
    lend, reclaim   tasks that wait for tasks
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from fray._values.options import TaskOptions

Key = str
"""What a value is called in the engine, before it is there too. Fray chooses it; unique in the engine."""


class CallFailed(Exception):  # noqa: N818 - an outcome, and no fault of the engine
    """What `run_call` raises for a call that failed; an engine passes it on unchanged.

    Attributes:
        data: The packed exception.
        cancelled: Whether that is a TaskCancelledError.
    """

    def __init__(self, data: bytes, cancelled: bool = False) -> None:
        super().__init__(data, cancelled)
        self.data, self.cancelled = data, cancelled

    def __str__(self) -> str:
        return "a call failed; its exception is packed"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.data)} bytes>"  # engines log it


class RemoteEngine(Protocol):
    """The primitives of a remote engine.

    An engine pickles, and connects again where it is unpickled: Fray takes it along into the workers, where
    tasks run tasks. Making one connects nowhere; its first use does. Any thread may call any primitive, also
    one of a worker, but none is called inside `act` or a callback of `ask`: Fray leaves these at once. What a
    primitive raises comes out of the call of the user that needed it; `submit` then fails that task alone.

    Attributes:
        processes: Whether workers are processes of their own, which may die alone.
    """

    processes: bool

    def submit(self, key: Key, call: bytes, dependencies: Sequence[Key], options: TaskOptions) -> None:
        """Let `run_call(call, values)` run on some worker, with the values of the dependencies, in order.

        What it returns is the value of `key`; where it raises, `key` has failed with that. The dependencies
        have values already; the engine keeps them until the call is over, and the submitter may
        release them at once. Where a worker dies the engine runs its calls again, however often, as it also
        may for a value that was lost: `run_call` ends that by `claim`. An engine without `claim` runs no call
        twice: it lets the key fail. An engine that gives up lets the key fail with an error of its own.
        `submit` does not wait for the call to run.
        """

    def store(self, key: Key, outcome: bytes | CallFailed) -> None:
        """Give a key a value, or a failure, that is known here. It may block until that is stored."""

    def fetch(self, keys: Sequence[Key]) -> Sequence[bytes]:
        """Return values that are there; the only primitive that moves one to the caller. It blocks.

        Raises:
            Exception: One of them was lost.
        """

    def when_done(self, key: Key, act: Callable[[BaseException | None], None]) -> None:
        """Call `act` once when a key has a value (with None) or has failed (with what it failed with).

        On any thread; `act` never blocks. The key may belong to another program, and not be submitted yet.
        When this returns the engine knows that this program holds the key, until `release`: the program that
        handed it over may release it from then on. For keys of other programs it may block for that.
        """

    def release(self, keys: Sequence[Key]) -> None:
        """Release keys: a value that no program holds may be deleted. It never blocks: finalizers call it.

        A program holds a key or does not, however often it acquired it. A call that waits or runs, and
        whose key nobody holds, may go unrun.
        """

    def workers(self) -> Mapping[str, float]:
        """Return the names of the living workers, each with its number of CPUs. It may block."""

    def close(self) -> None:
        """Release everything; the engine itself keeps running for others. Called once, last; it blocks.

        It is called on what arrived in a worker, too.
        """


class AskingEngine(RemoteEngine, Protocol):
    """What an engine has that can do everything; each of these may be missing."""

    def ask(self, worker: str, request: bytes) -> "Future[bytes]":
        """Call `answer(request)` on that worker and return a future of what it gives. It never blocks.

        The future fails, with any exception, when the worker has died, before it was asked or after. Requests
        may overtake each other, and an answer may take hours.
        """

    def swap(self, name: str, expected: bytes | None, record: bytes | None) -> bytes | None:
        """Replace the record of a name if it is the expected one; return what it was before. It blocks.

        Atomic among all programs on the engine. None means that there is no record.
        """

    def claim(self, key: Key, by: str) -> Sequence[str]:
        """Note that `by` is about to run a key; return who noted that before, oldest first. It blocks.

        Atomic among all programs on the engine, and forgotten with the key.
        """

    def lend(self) -> None:
        """Free the place of the call that this thread runs, which is about to wait.

        Called on the thread that called `run_call`, and on no other: actors and streams have no place.
        """

    def reclaim(self) -> None:
        """Take a place again: the wait is over. It may block until there is one."""
