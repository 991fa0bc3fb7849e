"""Calls that run in another process: the engine's tasks, streams and actor calls, with a travelling form.

    waiting for arguments -> queued -> given to a worker -> done
                               ^            |  \\-> the worker died: run again, or WorkerDiedError
                               +------------+ given back unstarted

What the engine decides (dependencies, settling, cancellation before the start, the scope) is
inherited; `run` is never called here, a worker does that.
"""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fray import TaskCancelledError, TaskError, WorkerDiedError
from fray._engine.actors import ActorProducer, ActorTask, Construction
from fray._engine.refs import ERROR, LOCK, VALUE, LocalRef, failure, outcome, settle, value_ref
from fray._engine.streams import Producer
from fray._engine.tasks import Task
from fray.backend import unpack_exception
from fray_local._process.owner.resources import Needs
from fray_local._process.owner.sent_segments import SentSegments
from fray_local._process.protocol.serialization import SerializedCall, SerializedFunction, pack
from fray_local._process.protocol.values import Blob, Budget

if TYPE_CHECKING:
    from fray_local._process.owner.worker_connection import WorkerConnection

_CALL_SLOTS = (
    "blob",
    "budget",
    "function",
    "needs",
    "number",
    "order",
    "places",
    "retries",
    "title",
    "worker",
)


_NONE: tuple[str, ...] = ()


class RemoteCall:
    """What every call in another process has; the concrete classes declare `_CALL_SLOTS`."""

    __slots__ = _NONE

    args: tuple[Any, ...]
    blob: Blob | None
    budget: Budget
    function: SerializedFunction | None
    needs: Needs
    number: int
    order: int
    places: Sequence[Any]
    retries: int
    title: str
    worker: "WorkerConnection | None"
    _claimed: bool

    def travel(self, packed: SerializedCall, title: str, budget: Budget, needs: Needs, retries: int) -> None:
        """Take over what the call travels as."""
        self.blob, self.function, self.places = (
            packed.blob,
            packed.function,
            [place for place, _ in packed.places],
        )
        self.title, self.budget, self.needs, self.retries = title, budget, needs, retries
        self.worker, self.number, self.order = None, 0, 0

    @property
    def label(self) -> str:
        """What errors and `repr` call it."""
        return f"{self.title}()"

    @property
    def credits(self) -> int | None:
        """Items that may be sent before the consumer takes one; None where there is one result."""
        return None

    def payload(self, descriptors: list[int], sent: SentSegments) -> tuple[Any, list[Any], list[Blob]]:
        """Return the arguments as a message describes them, and what must live until that is sent.

        Raises:
            SerializationError: The value of a reference, made in this process, cannot be pickled.
        """
        assert self.blob is not None
        description = self.blob.describe(descriptors)
        if not self.places:
            return description, [], [self.blob]
        blobs = [self._blob_of(ref) for ref in self.args]
        slots = [
            (place, blob.describe(descriptors, sent)) for place, blob in zip(self.places, blobs, strict=True)
        ]
        return description, slots, [self.blob, *blobs]

    def _blob_of(self, ref: LocalRef[Any]) -> Blob:
        value = ref._value
        return (
            value if type(value) is Blob else pack(outcome(ref), f"an argument of {self.label}", self.budget)
        )

    def release(self) -> None:
        """Let go of the arguments: it is done, or will not run."""
        self.blob, self.args, self.function, self.worker = None, (), None, None

    def unclaim(self) -> None:
        """Be unstarted again: the worker gave it back."""
        self.worker = None
        with LOCK:
            self._claimed = False


class _Single(RemoteCall):
    """A call with one result."""

    __slots__ = _NONE
    ref: LocalRef[Any]

    @property
    def over(self) -> bool:
        """Whether its outcome is known."""
        return bool(self.ref._state)

    def done(self, state: int, blob: Blob) -> None:
        """Settle with what the worker sent."""
        if state == VALUE:
            settle(self.ref, VALUE, blob)
        else:
            settle(self.ref, ERROR, failure(error_of(blob)))
        self.release()

    def lost(self, error: BaseException) -> None:
        """Settle with an error: its worker died while it ran."""
        settle(self.ref, ERROR, failure(error))
        self.release()

    def interrupt(self, error: BaseException) -> bool:
        """Settle as cancelled though it runs; what it returns will be ignored."""
        return settle(self.ref, ERROR, failure(error))


class RemoteTask(_Single, Task):
    """A function that runs in a worker."""

    __slots__ = _CALL_SLOTS
    method = None


class RemoteActorTask(_Single, ActorTask):
    """A call of an actor's method."""

    __slots__ = _CALL_SLOTS

    def done(self, state: int, blob: Blob) -> None:
        """Settle, and tell the actor."""
        super().done(state, blob)
        self.actor.closed(self)
        self.actor.mailbox.settled()  # type: ignore[attr-defined]

    def lost(self, error: BaseException) -> None:
        """Settle with the death of the process, which the actor may survive."""
        super().lost(error)
        self.actor.closed(self)


class RemoteConstruction(_Single, Construction):
    """The call of an actor's constructor."""

    __slots__ = _CALL_SLOTS
    method = ""

    def done(self, state: int, blob: Blob) -> None:
        """Open the actor, or let it die of the constructor's exception."""
        if state == VALUE:
            settle(self.ref, VALUE, None)
        else:
            settle(self.ref, ERROR, failure(error_of(blob)))
        self._report()

    def replaced(self) -> None:
        """Settle without a word: its process died, and another constructs the actor."""
        settle(self.ref, VALUE, None)
        self.release()

    def lost(self, error: BaseException) -> None:
        """Let the actor die: its process did, before it was there."""
        settle(self.ref, ERROR, failure(error))
        self._report()


class _Streaming(RemoteCall):
    """A call with many results.

    The worker may send as many items as it has credits; with the last one it suspends the
    generator. Taking items gives new credits.
    """

    __slots__ = _NONE

    _buffer: deque[LocalRef[Any]]
    _cancelled: bool
    _finished: bool
    _limit: int
    _parked: bool
    allowed: int

    def travel(self, packed: SerializedCall, title: str, budget: Budget, needs: Needs, retries: int) -> None:
        """Take over what the call travels as; no retries, because items have been seen."""
        super().travel(packed, title, budget, needs, 0)
        self.allowed = self._limit

    @property
    def credits(self) -> int | None:
        """Items that may be sent before the consumer takes one."""
        return self.allowed

    @property
    def over(self) -> bool:
        """Whether its end is known."""
        return self._finished

    def new_credits(self) -> int:
        """Return how many more items may come, having taken note of them."""
        with LOCK:
            more = max(0, self._limit - len(self._buffer) - self.allowed)
            self.allowed += more
        return more

    def item(self, blob: Blob) -> bool:
        """Take one item; True where it was the last that may come, and the worker is free."""
        self._push(value_ref(blob))  # type: ignore[attr-defined]
        with LOCK:
            self.allowed -= 1
            if self.allowed or self._finished or self._parked:
                return False
            self._parked = True
            drained = self._leave()  # type: ignore[attr-defined]
        if drained:
            self.scope.on_drained()  # type: ignore[attr-defined]
        return True

    def done(self, state: int, blob: Blob) -> None:
        """End the stream, with an error where there is one."""
        self._finish(error_of(blob) if state == ERROR else None)  # type: ignore[attr-defined]
        self.release()

    def lost(self, error: BaseException) -> None:
        """End the stream: its worker died."""
        self._finish(error)  # type: ignore[attr-defined]
        self.release()

    def interrupt(self, error: BaseException) -> bool:
        """End the stream though its generator runs, or waits."""
        if self._finished:
            return False
        self._finish(error)  # type: ignore[attr-defined]
        return True

    def cancel(self, reason: BaseException | None = None) -> bool:
        """End it unrun; False where it has started."""
        if not self.claim():  # type: ignore[attr-defined]
            return False
        self._finish(reason or cancelled(self))  # type: ignore[attr-defined]
        return True

    def abandon(self) -> None:
        """Nobody will read it any more: its context is closing."""
        self.interrupt(TaskCancelledError(f"{self.label} was cancelled: its context was shut down"))


class RemoteProducer(_Streaming, Producer):
    """A generator function that runs in a worker of its own until it ends."""

    __slots__ = (*_CALL_SLOTS, "allowed")
    method = None


class RemoteActorProducer(_Streaming, ActorProducer):
    """A call of an actor's generator method."""

    __slots__ = (*_CALL_SLOTS, "allowed")

    def done(self, state: int, blob: Blob) -> None:
        """End the stream, and tell the actor."""
        super().done(state, blob)
        self.actor.closed(self)
        self.actor.mailbox.settled()  # type: ignore[attr-defined]

    def abandon(self) -> None:
        """Nobody will read it any more; the process, which may be another's, hears of it."""
        super().abandon()
        connection = self.worker
        if connection is not None:
            connection.cancel(self)
        self.actor.closed(self)

    def lost(self, error: BaseException) -> None:
        """End the stream: the process died."""
        super().lost(error)
        self.actor.closed(self)


AnyCall = RemoteTask | RemoteActorTask | RemoteConstruction | RemoteProducer | RemoteActorProducer


def error_of(blob: Blob) -> BaseException:
    """Return the exception that a worker sent."""
    try:
        return unpack_exception(blob.data)
    except Exception as failure_to_load:  # noqa: BLE001 - its class may be in a module that is not here
        kind = type(failure_to_load).__name__
        return TaskError("Exception", f"it cannot be rebuilt here ({kind}: {failure_to_load})", "")


def cancelled(call: RemoteCall) -> TaskCancelledError:
    """Return the error of a call that was cancelled."""
    return TaskCancelledError(f"{call.label} was cancelled")


def died(call: RemoteCall, pid: int, how: str) -> WorkerDiedError:
    """Return the error of a call whose worker died."""
    return WorkerDiedError(f"the worker process {pid} that ran {call.label} {how}")
