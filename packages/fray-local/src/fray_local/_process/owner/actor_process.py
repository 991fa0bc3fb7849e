"""Actors of a `ProcessContext`: the engine's, each in a process of its own."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fray import ActorDiedError, WrongProcessError
from fray._engine import refs as _refs
from fray._engine.actors import Actor, ActorProducer, Construction, Endpoint
from fray._engine.refs import reduce_by_identity
from fray._engine.streams import LocalStream
from fray.job import ActorEndpoint, get_job_context
from fray_local._process.owner.actor_directory import ActorRecord
from fray_local._process.owner.calls import (
    AnyCall,
    RemoteActorProducer,
    RemoteActorTask,
    RemoteConstruction,
)
from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.protocol.serialization import SerializedCall

if TYPE_CHECKING:
    from fray_local._process.context import ProcessContext

_EXIT_SECONDS = 5.0  # that an actor has to end by itself once its context is shut down


class ActorProcess:
    """The process of one actor: the engine's mailbox, and the owner of one worker.

    Calls are sent on as they come; the process keeps their order.
    """

    inline = False

    def __init__(
        self,
        loop: EventLoop,
        start_worker: Callable[["ActorProcess"], WorkerConnection],
        restarts: int,
        *,
        own: bool,
    ) -> None:
        self.is_own = own  # the process ends with the context
        self.doomed = False  # it is to be killed rather than left
        self._loop, self._start_worker, self._restarts = loop, start_worker, restarts
        self._lock = threading.Lock()
        self._queue: deque[AnyCall] = deque()
        self._open = self._closing = self._retired = False
        self._gone = threading.Event()
        self.construct_again: Callable[[], RemoteConstruction] | None = None
        self.actor: Actor
        self._worker: WorkerConnection | None = None

    # The engine's side.

    def start(self, job: Any) -> None:
        """Send a call on, or keep it until the actor is open; a stream that is to go on does so."""
        if isinstance(job, RemoteActorProducer) and job.worker is not None:
            job.worker.resume(job)
            return
        with self._lock:
            self._queue.append(job)
            calls = self._take()
        self._give(calls)

    submit = start

    def submit_first(self, job: Any) -> None:
        """Put a call before all others."""
        with self._lock:
            self._queue.appendleft(job)

    def resize(self, size: int) -> None:
        """Open for calls."""
        with self._lock:
            self._open = size > 0
            calls = self._take()
        self._give(calls)

    def drain(self) -> list[Any]:
        """Take back what was not sent."""
        with self._lock:
            calls = list(self._queue)
            self._queue.clear()
        return calls

    def close(self, *, wait: bool = False) -> None:
        """Let the process end after the calls that it has; with `wait`, block until it has."""
        self._closing = True
        self.settled()
        if wait:
            self._gone.wait()

    def settled(self) -> None:
        """A call was answered: where it was the last, and nobody can make another, the process may end."""
        if self._closing and (self.actor.dead or not self.actor._open):
            self._retire()

    def leave(self) -> None:
        """Hang up on an actor that goes on without this context, whatever it still runs for it."""
        self._closing = True
        self._retire()

    def _retire(self) -> None:
        with self._lock:
            first, self._retired, worker = not self._retired, True, self._worker
        if worker is None:
            self._gone.set()  # never started
        elif first and self.doomed:
            worker.kill()
        elif first:
            worker.retire()
            self._loop.call_later(_EXIT_SECONDS, self.kill)

    def kill(self) -> None:
        """End the process now."""
        if self._worker is not None:
            self._worker.kill()

    def _take(self) -> list[AnyCall]:
        """Under the lock: what can be sent."""
        if not self._open:
            return []
        queue, self._queue = self._queue, deque()
        calls = []
        for call in queue:
            if call.claim():
                calls.append(call)
            else:  # cancelled, or an argument failed
                self.actor.closed(call)  # type: ignore[arg-type]
        return calls

    def _give(self, calls: list[AnyCall]) -> None:
        if not calls:
            return
        try:
            self.connect()
        except Exception as error:  # noqa: BLE001 - no more descriptors, say
            self._die(f"its process could not be started: {error}", calls)
            return
        if self._worker is not None:
            self._worker.give(calls)

    def connect(self) -> None:
        """Start the process, or connect to it."""
        with self._lock:
            if self._worker is None and not self._retired:
                self._worker = self._start_worker(self)

    # The worker's side; see `WorkerOwner`.

    def done(self, worker: WorkerConnection, call: AnyCall, seconds: float) -> None:
        """Nothing waits for a place here."""

    def parked(self, worker: WorkerConnection, call: AnyCall) -> None:
        """Between the items of a stream the actor answers other calls anyway."""

    def lend(self, worker: WorkerConnection) -> None:
        """One call at a time means that no other runs while it waits."""

    def reclaim(self, worker: WorkerConnection) -> None:
        """Nothing was lent."""

    def returned(self, worker: WorkerConnection, calls: list[AnyCall]) -> None:
        """Put calls back: the process is gone."""
        with self._lock:
            self._queue.extendleft(reversed(calls))
            calls = self._take() if worker is not self._worker else []
        self._give(calls)

    def ended(
        self, worker: WorkerConnection, how: str, started: list[AnyCall], unstarted: list[AnyCall]
    ) -> None:
        """Let the actor die with its process, or make it anew."""
        if self._restarts > 0 and not self._closing and self._construct_again(started, unstarted, how):
            return
        reason = f"its process {worker.pid or ''} {how}".replace("  ", " ")
        self._die(reason, [*started, *unstarted])

    def _die(self, reason: str, calls: list[AnyCall]) -> None:
        self.actor.die(reason)
        for call in calls:
            call.lost(ActorDiedError(self.actor.label, reason))
        self._gone.set()

    def _construct_again(self, started: list[AnyCall], unstarted: list[AnyCall], how: str) -> bool:
        if self.construct_again is None:
            return False
        again = None
        try:
            again = self.construct_again()
            worker = self._start_worker(self)
        except Exception:  # noqa: BLE001 - the context is closing, or no process can be started
            if again is not None:
                again.replaced()
            return False
        self._restarts -= 1
        for call in [*started, *unstarted]:
            if isinstance(call, RemoteConstruction):
                call.replaced()
        lost = [call for call in started if not isinstance(call, RemoteConstruction)]
        kept = [call for call in unstarted if not isinstance(call, RemoteConstruction)]
        for call in kept:
            call.unclaim()
        with self._lock:
            self._worker = worker
            self._queue.extendleft(reversed(kept))
            again.claim()
            calls = [again, *self._take()]
        self._give(calls)
        for call in lost:
            reason = f"its process {how} while it ran {call.label}; it was made anew, without its state"
            call.lost(ActorDiedError(self.actor.label, reason))
        return True


class ProcessEndpoint(Endpoint):
    """What handles of one actor share, in the process that made it."""

    actor: Actor

    def __init__(self, actor: Actor, context: "ProcessContext", record: ActorRecord | None) -> None:
        super().__init__(actor)
        self.context, self.record = context, record

    @property
    def address(self) -> tuple[str, str, str] | None:
        """Where processes that do not belong to the context find the actor; None where they cannot."""
        record = self.record
        return None if record is None else (record.namespace, record.name, str(record.created_at))

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.call_packed(method, self.context.pack(None, args, kwargs))

    def call_packed(self, method: str, packed: SerializedCall) -> Any:
        """Queue a call whose arguments are packed."""
        # The engine hands arguments through to what makes the call, which is ours.
        answer = self.actor.call(method, packed, {})  # type: ignore[arg-type]
        if isinstance(answer, LocalStream):
            self.context.close_when_dropped(answer)
        return answer

    def streams(self, method: str) -> bool:
        """Whether a method yields."""
        return self.actor._streaming[method]

    def __reduce__(self) -> tuple[Any, ...]:
        _, token = reduce_by_identity(self)
        return revive, (token, self.label, dict(self.actor._streaming), self.address)


def revive(token: tuple[Any, ...], label: str, methods: Mapping[str, bool], address: Any) -> ActorEndpoint:
    """Return the endpoint of a handle that was pickled, in whatever process."""
    from fray_local._process.worker.proxies import RemoteEndpoint

    try:
        found = _refs._find(*token)
    except WrongProcessError:
        endpoint_at = getattr(get_job_context(), "endpoint_at", None)
        if address is None or endpoint_at is None:
            raise
        found_there: ActorEndpoint = endpoint_at(address)
        return found_there
    if isinstance(found, Endpoint):
        return found
    client = found._client  # a plain reference is what a worker makes of a name
    client.refcounts.append((found.key, 1))
    return RemoteEndpoint(client, found.key, label, methods, address)


def stand_in(title: str, methods: Mapping[str, bool]) -> Any:
    """Return a class with methods of these names, for an engine that looks at the class."""

    def returns() -> None: ...

    def yields() -> Any:
        yield

    members = {name: yields if streaming else returns for name, streaming in methods.items()}
    return type(title.rpartition(".")[2], (), {**members, "__qualname__": title})


def remote_kind(kind: type) -> type:
    """Return the class for calls in another process that stands for one of the engine's."""
    if kind is Construction:
        return RemoteConstruction
    return RemoteActorProducer if kind is ActorProducer else RemoteActorTask
