"""The calling side of actors that live on workers: an `ActorCaller` for each that this program calls."""

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from uuid import uuid4

from fray._contexts.remote.names import ActorRecord
from fray._contexts.remote.session import SessionContext
from fray._contexts.remote.slots import slots_of
from fray._contexts.remote.streams import RemoteStream
from fray._contexts.remote.values import SerializedBytes, SerializedError, SerializedValue, StoredKey
from fray._engine.actors import Actor
from fray._engine.calls import dispatch


class ActorCaller:
    """Sends the calls of one actor, in order, to the worker that it lives on; the engine's `ActorRunner`.

    Attributes:
        record: Where it lives; set before it is given a call.
    """

    interrupts = False

    def __init__(self, context: SessionContext, actor: Actor) -> None:
        self._context, self._actor = context, actor
        self.record: ActorRecord
        self.name = f"{context.holder}-{uuid4().hex[:8]}"  # calls are in order for each of these
        self.owned = False  # it ends with this context
        self._lock = threading.RLock()  # a finalizer may call the actor while this thread holds it
        self._sent = 0
        self._incarnation = 0
        self._waiting: set[Any] = set()
        self._held_back: list[Any] | None = None  # calls that wait until the actor is created again
        self._ended = False

    def start(self, calls: Sequence[Any]) -> None:
        """Send calls; the number of each is its place among those of this program."""
        for call in calls:
            held: list[Any] | None = None
            if call.kind == "construct":
                with self._lock:
                    held, self._held_back = self._held_back, None
            for each in (call, *(held or ())):
                try:
                    self._send(each)
                except Exception as error:  # noqa: BLE001 - an argument that cannot travel fails its call alone
                    dispatch(each.fail(error))

    def _send(self, call: Any) -> None:
        payload, refs = call.payload, call.refs
        slots, keys = slots_of(self._context, refs)
        with self._lock:
            if self._held_back is not None:
                self._held_back.append(call)
                return
            if not call.claim():
                return
            self._waiting.add(call)
            record, incarnation, number = self.record, self._incarnation, self._sent
            self._sent += call.kind != "construct"
        if call.kind == "construct":
            request: Any = ("construct", record, payload.data, slots, keys, self.name)
        else:
            place = (self.name, incarnation, number)
            request = ("call", record.actor, place, call.method, call.label, payload.data, slots, keys)
        held = [ref.content for ref in refs if isinstance(ref.content, StoredKey)]
        answer = self._context.ask(record.worker, *request, session=record.session)
        arrived = partial(self._arrived, call, incarnation, held)
        answer.add_done_callback(partial(self._context.post, arrived))

    def _arrived(self, call: Any, incarnation: int, held: Any, answer: "Future[bytes]") -> None:
        del held  # values that the worker has by now
        error = answer.exception()
        if error is not None:
            self._lost(incarnation, error)
            return
        self._waiting.discard(call)
        kind, content = pickle.loads(answer.result())
        if kind == "value":
            dispatch(call.succeed(SerializedValue(self._context, SerializedBytes(content, ()))))
        elif kind == "failed":
            dispatch(call.fail(SerializedError(content)))
        elif kind == "stream":
            call.state = RemoteStream(self._context, call, self.record.worker, content)
            call.state.pump(call)
        else:
            dispatch(self._actor.die(content))

    def _lost(self, incarnation: int, error: BaseException) -> None:
        """Record, once, that the worker is gone; the engine's record says whether the actor is restarted."""
        with self._lock:
            if incarnation != self._incarnation:
                return
            self._incarnation += 1
            self._sent = 0
            calls, self._waiting = self._waiting, set()
            self._held_back = []
        how = f"on worker {self.record.worker} ended ({error!r})"
        if not self.owned:
            dispatch(self._actor.die(f"its process {how}"))
        elif not self._actor.may_restart:
            dispatch(self._actor.process_died(how, list(calls), []))
        else:  # on a thread of its own: it may wait for a worker that is on its way
            self._context.callbacks.run(partial(self._move, how, list(calls)))

    def _move(self, how: str, calls: list[Any]) -> None:
        """Construct it on another worker; what it is asked meanwhile follows."""
        before = self.record
        try:
            self.record = before._replace(worker=self._context.choose_worker(without=before.worker))
        except Exception as no_worker:  # noqa: BLE001 - there is none: it cannot come back
            dispatch(self._actor.die(f"its process {how}, and there is no other: {no_worker!r}"))
            return
        ready = self._actor.process_died(how, calls, [])
        if not self._actor.dead:
            self._context.names.move(before, self.record)
        dispatch(ready)

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Request more items of a generator method."""
        if call.state is not None:
            call.state.pump(call)

    def interrupt(self, call: Any) -> None:
        """Never called: a method is not interrupted."""

    def end(self, *, kill: bool) -> None:
        """End the actor, or release it where it may live on; from a finalizer too."""
        if self._ended:
            return
        self._ended = True
        over = kill or self._actor.dead  # its context's end is one that only a detached actor outlives
        act = "kill_actor" if over and self.owned else "drop_actor"
        arguments = (self.record.actor, "it was killed" if over else self.name)
        self._context.tell(self.record.worker, act, *arguments, session=self.record.session)

    def close(self, *, wait: bool) -> None:
        """Do nothing: the session's end is the actor's."""
