"""The contract of a task runner: what runs the ready calls of an engine, on this machine.

The engine keeps the books: references, dependencies, streams, the order of an actor's calls, what is
under way. It starts no thread and does no I/O. A runner is handed calls whose arguments are there, runs
them wherever it likes, and settles them. It inherits nothing: what it must have is below, and what it
works with is handed to it.

    engine -- start([call, ...]) --> runner        calls are opaque: the payload is the runner's own
    engine <-- call.succeed(value) -- runner       returns what became ready; dispatch() starts that

A runner may keep a result wherever it is: a `StoredValue` is loaded by its reader, and passed on
unopened as an argument of another call of the same runner.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from fray._values.options import ActorOptions, TaskOptions

if TYPE_CHECKING:
    from fray._contracts.refs import ObjectRef

CallKind = Literal["task", "construct", "method"]


class StoredValue:
    """A value that is not simply in memory; every `get` loads it."""

    __slots__ = ()

    def load(self) -> Any:
        """Return the value; called by the reader's thread, for each read."""
        raise NotImplementedError


class StoredError:
    """The failure of a call; loaded by its reader."""

    __slots__ = ()

    @property
    def cancelled(self) -> bool:
        """Whether `load` gives a TaskCancelledError; known without loading."""
        raise NotImplementedError

    def load(self) -> BaseException:
        """Return the exception, to be raised."""
        raise NotImplementedError


class PackedCall(NamedTuple):
    """A function and its arguments, as a runner keeps them."""

    payload: Any
    """The runner's own; the engine never looks into it."""
    refs: Sequence["ObjectRef[Any]"] = ()
    """The references among the arguments: the call is ready when each has a value."""


class RunnerCall(Protocol):
    """One call, as its runner sees it. Every method may be called from any thread, and never blocks."""

    @property
    def kind(self) -> CallKind: ...
    @property
    def method(self) -> str:
        """The name of an actor's method; empty for other kinds."""

    @property
    def payload(self) -> Any:
        """What `pack` made; None once it was settled."""

    @property
    def refs(self) -> Sequence[Any]:
        """The references that `pack` found, in its order; each has a value."""

    @property
    def label(self) -> str:
        """What errors and logs call it."""

    @property
    def options(self) -> TaskOptions | ActorOptions: ...

    @property
    def streaming(self) -> bool:
        """Whether it has many results: `push` them, then `succeed(None)` or `fail`."""

    state: Any
    """A place for what the runner needs to remember; None at first."""

    @property
    def over(self) -> bool:
        """Whether it has been settled: its further results are dropped."""

    @property
    def unwanted(self) -> bool:
        """Whether its context is shutting down and wants nothing more to start."""

    def claim(self) -> bool:
        """Take the right to run it; False where it was cancelled, or is another's, and must not run."""

    def unclaim(self) -> None:
        """Give that right back: it did not start, and will be run later."""

    def succeed(self, value: Any = None) -> "Ready":
        """Settle it with its value, or a `StoredValue`. A call that is over ignores this and `fail`."""

    def fail(self, error: BaseException | StoredError) -> "Ready":
        """Settle it with an exception."""

    def cancel_unstarted(self, reason: BaseException) -> "Ready":
        """Settle it with an error unless it was claimed."""

    def lost(self, error: BaseException) -> "Ready":
        """Its worker died: run it again while `max_retries` allows, else fail with this error."""

    @property
    def retries_left(self) -> int: ...

    @property
    def credits(self) -> int:
        """Of a stream: how many items may be pushed now."""

    def push(self, values: Sequence[Any]) -> bool:
        """Add items of a stream; True where these used up the last credit.

        The stream is parked then: it counts as not under way, and whatever runs it should release its
        place until `resume`.
        """


Ready = Sequence[RunnerCall]
"""Calls that became ready because another settled: `fray.backend.dispatch` hands them to their runners."""


class CallRunner(Protocol):
    """Runs calls. The engine calls these methods from any thread, and holds no lock meanwhile."""

    @property
    def interrupts(self) -> bool:
        """Whether a function that runs can be stopped."""

    def start(self, calls: Sequence[Any]) -> None:
        """Take calls that are ready; run each that can be claimed, soon. It should not block.

        Raises:
            Exception: None of them can be run; they are failed with it.
        """

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Note that the consumer of a stream took items: `more` may be pushed.

        It may be called from a finalizer: so a generator is closed whose stream was dropped.

        Args:
            parked: It had used up all that it had, so its producer waits; else it still runs.
        """

    def interrupt(self, call: Any) -> None:
        """Stop a claimed call, which the engine has settled already; only where `interrupts`.

        It may be called from a finalizer.
        """


class RescuingRunner(CallRunner, Protocol):
    """A runner that can detect that all its places are taken by calls that wait for threads of their own."""

    def rescue(self) -> Any:
        """Free a place for a thread that no runner knows and that waits for a call; None where it need not.

        It is called now and then while such a thread waits. What it returns has `reclaim()`, which is called
        when that wait is over.
        """


class ActorRunner(CallRunner, Protocol):
    """Runs the calls of one actor.

    The first call that it is given is the constructor's: it runs to its end before any other. After it
    calls start in the order in which they come, at most `max_concurrency` at a time. With `max_restarts`
    a constructor's call may come again.
    """

    def end(self, *, kill: bool) -> None:
        """Stop accepting calls. `kill`: end whatever it runs, now; else it may end by itself.

        It may be called more than once, and from a finalizer: it never blocks.
        """

    def close(self, *, wait: bool) -> None:
        """End at the context's end; with `wait`, block until whatever ran the actor is gone."""


class RunnerActor(Protocol):
    """One actor, as its runner sees it."""

    @property
    def label(self) -> str: ...
    @property
    def options(self) -> ActorOptions: ...
    @property
    def methods(self) -> Mapping[str, bool]:
        """The names that can be called, and whether each streams."""

    @property
    def dead(self) -> bool: ...

    def die(self, reason: str, cause: BaseException | None = None) -> Ready:
        """Let every open call, and every later one, raise ActorDiedError; a second death is none."""

    def process_died(self, how: str, started: Sequence[Any], unstarted: Sequence[Any]) -> Ready:
        """Record that the process or thread of the actor is gone, with the calls that it had.

        While `max_restarts` allows, the calls that had started fail, the constructor runs again (it is the
        first of what is ready) and those that had not started follow it. Else the actor dies.
        """


class TaskRunner(CallRunner, Protocol):
    """Runs the tasks of one context, and makes what runs its actors."""

    def belong_to(self, context: Any) -> None:
        """Store the context, when that is made: what `get_job_context` returns inside its calls."""

    def pack(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PackedCall:
        """Return a call as this runner keeps it, made at once: the caller may change its arguments later.

        Args:
            fn: A task's function or an actor's class; None for the arguments of a method.

        Raises:
            SerializationError: An argument cannot travel.
        """

    def new_actor(self, actor: Any) -> ActorRunner:
        """Return what will run the calls of an actor; it starts nothing before it is given a call."""

    def call_back(self, fn: Callable[[], object]) -> None:
        """Call a function of the user (the callback of a future) on a thread that serves nobody else."""

    def close(self, *, wait: bool) -> None:
        """End: everything was done. Called more than once; it blocks only with `wait`, until all is gone."""

    def abort(self) -> None:
        """End whatever runs, as far as that can be done; the results are of no interest."""

    def disown(self) -> bool:
        """In a forked child of the process: release everything, without a message to the others.

        Returns:
            Whether the child can use the context.
        """
