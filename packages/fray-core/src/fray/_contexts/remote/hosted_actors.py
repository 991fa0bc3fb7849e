"""Actors that live in a worker process; the thread pool of the process runs their calls."""

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fray._contexts.remote.hosted_calls import HostedCalls, Reply
from fray._contexts.remote.hosted_streams import HostedStreams
from fray._contexts.remote.names import ActorRecord
from fray._contexts.remote.threads import SerialThread
from fray._contexts.remote.values import failed_with, pack
from fray._contracts.actor_handle import ActorHandle
from fray._contracts.remote_engine import Key
from fray._engine.futures import EngineFuture
from fray._engine.streams import EngineStream
from fray._values.errors import ActorDiedError
from fray._values.options import ActorOptions


class HostedActor:
    """One actor: puts calls in the order of their callers, unpacks each, and lets the thread pool run it."""

    def __init__(self, calls: HostedCalls, streams: HostedStreams) -> None:
        self._calls, self._streams = calls, streams
        self.dead: str | None = None
        self._record: ActorRecord | None = None
        self._endpoint: Any = None  # the thread pool's
        self._intake: SerialThread | None = None
        self._early: list[Callable[[], None]] = []
        self._next: dict[Any, int] = {}
        self._ahead: dict[Any, dict[int, Callable[[], None]]] = {}
        self._holders: set[str] = set()
        self._lock = threading.RLock()

    def construct(self, reply: Reply, record: ActorRecord, arguments: Sequence[Any], holder: str) -> None:
        """Make it; calls that came before follow."""

        def make() -> None:
            cls, args, kwargs = self._calls.arguments(*arguments)
            self._calls.context.await_arrivals()
            options = ActorOptions(max_concurrency=record.options.max_concurrency)
            handle = self._calls.local._start_actor(cls, args, kwargs, options)
            self._endpoint = handle._endpoint
            actor = self._endpoint.actor
            made = [call for call in list(actor.open_calls) if call.kind == "construct"]
            if made:
                self._answer_later(reply, made[0].ref, lambda _: None)
            elif actor.dead:
                raise _outcome_error(actor)
            else:
                reply.set_result(pickle.dumps(("value", pack(self._calls.context, None, "").data)))

        with self._lock:
            self._record = record
            self._holders.add(holder)
            self._intake = SerialThread("fray-actor")
            self._intake.run(lambda: self._answering(reply, make))
            early, self._early = self._early, []
            for act in early:
                self._intake.run(act)

    def arrived(self, reply: Reply, place: tuple[str, int, int], call: Sequence[Any]) -> None:
        """Take a call, which may have overtaken others of its caller."""
        holder, incarnation, number = place
        caller = (holder, incarnation)

        def act() -> None:
            self._answering(reply, lambda: self._run(reply, *call))

        with self._lock:
            if self.dead is not None:
                reply.set_result(pickle.dumps(("dead", self.dead)))
                return
            ahead = self._ahead.setdefault(caller, {})
            ahead[number] = act
            while (next_act := ahead.pop(self._next.get(caller, 0), None)) is not None:
                self._next[caller] = self._next.get(caller, 0) + 1
                if self._intake is None:
                    self._early.append(next_act)
                else:
                    self._intake.run(next_act)

    def _run(
        self, reply: Reply, method: str, label: str, data: bytes, slots: Sequence[Any], keys: Sequence[Key]
    ) -> None:
        _, args, kwargs = self._calls.arguments(data, slots, keys)
        self._calls.context.await_arrivals()
        thing = self._endpoint.call(method, args, kwargs)
        if isinstance(thing, EngineStream):
            reply.set_result(pickle.dumps(("stream", self._streams.keep(thing))))
            return
        owner = self._record.actor if self._record else ""
        self._answer_later(
            reply, thing, lambda value: self._calls.packed(value, f"the result of {label}", owner)
        )

    def _answer_later(self, reply: Reply, ref: Any, packed: Callable[[Any], Any]) -> None:
        def settle(future: "Future[Any]") -> None:
            def act() -> None:
                reply.set_result(pickle.dumps(("value", packed(future.result()))))

            self._answering(reply, act)

        EngineFuture(ref, self._calls.context.callbacks.run).add_done_callback(settle)

    def _answering(self, reply: Reply, act: Callable[[], None]) -> None:
        try:
            if self.dead is None:
                act()
            else:
                reply.set_result(pickle.dumps(("dead", self.dead)))
        except BaseException as error:  # noqa: BLE001 - whatever the actor raised is its caller's
            actor = self._endpoint.actor if self._endpoint is not None else None
            gone = self.dead is not None or (actor is not None and actor.dead)
            if gone and isinstance(error, ActorDiedError):
                reply.set_result(pickle.dumps(("dead", error.reason)))
            else:
                reply.set_result(pickle.dumps(("failed", failed_with(error))))

    def hold(self, holder: str) -> None:
        """Count one more program that can call it."""
        with self._lock:
            self._holders.add(holder)

    def drop(self, holder: str) -> None:
        """Count one less; the last takes the actor along unless it has a name."""
        with self._lock:
            self._holders.discard(holder)
            named = self._record is not None and self._record.options.name is not None
            last = not self._holders and not named
        if last:
            self.end("nobody can call it any more")

    def end(self, reason: str) -> bool:
        """End it; return whether it was a detached one, and alive."""
        with self._lock:
            if self.dead is not None:
                return False
            self.dead = reason
            endpoint, self._endpoint = self._endpoint, None
            early, self._early = self._early, []
            ahead, self._ahead = self._ahead, {}
        for act in [*early, *(act for acts in ahead.values() for act in acts.values())]:
            act()  # which answers that it is dead
        if endpoint is not None:
            self._calls.local.kill(ActorHandle(endpoint))
        if self._intake is not None:
            self._intake.close()
        return self._record is not None and self._record.detached


def _outcome_error(actor: Any) -> BaseException:
    """Return why a local actor is dead, as its constructor's failure."""
    death: BaseException = actor._death.load()
    return death.__cause__ or death
