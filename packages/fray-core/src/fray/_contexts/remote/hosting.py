"""A session's actors and streams in one worker process: a thread pool of this process runs them.

Each request comes on a thread of its own, with a future for its answer. What is answered is pickled; what
a user made travels in it packed.
"""

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fray._contexts.base import DEFAULT_TASK
from fray._contexts.remote.actors import ActorRecord
from fray._contexts.remote.threads import SerialThread
from fray._contexts.remote.values import failed_with, filled, pack, unpack
from fray._contracts.remote_engine import CallFailed, Key
from fray._discovery.current import create_context
from fray._engine.futures import EngineFuture
from fray._engine.refs import ERROR, outcome
from fray._engine.streams import EngineStream
from fray._engine.waiting import watch_for
from fray._values.errors import ActorDiedError, TaskCancelledError
from fray._values.options import ActorOptions

if TYPE_CHECKING:
    from fray._contexts.remote.context import EngineContext

Reply = Future[bytes]
_THREADS = 1000  # streams that wait for something at the same time; threads are made when they are needed


class Host:
    """What runs a session's actors and streams in this process; public methods answer requests."""

    def __init__(self, context: "EngineContext") -> None:
        self.context = context
        self._streams: dict[str, EngineStream[Any]] = {}
        self._actors: dict[str, HostedActor] = {}
        self._lock = threading.Lock()
        self._local: Any = None

    @property
    def local(self) -> Any:
        """The thread pool, made when it is first needed."""
        with self._lock:
            if self._local is None:
                self._local = create_context("threadpool", max_workers=_THREADS)
                self._local.engine.runner.belong_to(self.context)  # what `get_job_context` finds in a method
            return self._local

    def arguments(
        self, data: bytes, slots: Sequence[bytes | None], keys: Sequence[Key]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Unpack a call, with the values that the engine keeps."""
        brought = iter(self.context.remote.fetch(keys) if keys else ())
        values = [unpack(self.context, next(brought) if slot is None else slot) for slot in slots]
        fn, args, kwargs = unpack(self.context, data)
        args, kwargs = filled(args, kwargs, values)
        return fn, args, kwargs

    def packed(self, value: Any, what: str, keeper: str) -> bytes:
        """Pack a value; what it names lives as long as the session."""
        packed = pack(self.context, value, what)
        if packed.kept:
            self.context.kept.setdefault(keeper, []).append(packed.kept)
        self.context.await_arrivals()
        return packed.data

    # Streams.

    def open_stream(
        self,
        reply: Reply,
        name: str,
        label: str,
        data: bytes,
        slots: Sequence[bytes | None],
        keys: Sequence[Key],
    ) -> None:
        """Start a generator; the answer says that its arguments are here."""
        fn, args, kwargs = self.arguments(data, slots, keys)
        self._streams[name] = self.local._submit(fn, args, kwargs, DEFAULT_TASK)
        self.context.await_arrivals()
        reply.set_result(pickle.dumps(label))

    def keep_stream(self, stream: EngineStream[Any]) -> str:
        """Return the name of a stream that a method of an actor returned."""
        name = uuid4().hex
        self._streams[name] = stream
        return name

    def next_items(self, reply: Reply, name: str, most: int) -> None:
        """Answer when an item is there, with all that are, and whether the stream has ended and how."""
        stream = self._streams.get(name)
        if stream is None:
            cancelled = failed_with(TaskCancelledError("the stream was closed"))
            reply.set_result(pickle.dumps(([], True, cancelled)))
            return
        stream.call.ask()

        def collect() -> None:
            answer_with(reply, lambda: self._collected(name, stream, most))

        watch_for([stream.call], 1, lambda: self.context.callbacks.run(collect))

    def _collected(self, name: str, stream: EngineStream[Any], most: int) -> Any:
        items: list[bytes] = []
        failure: CallFailed | None = None
        while len(items) < most and failure is None and (item := stream.call.take()) is not None:
            try:
                items.append(self.packed(outcome(item), f"an item of {stream.call.label}", name))
            except BaseException as error:  # noqa: BLE001 - the generator's own, or an item that cannot travel
                failure = failed_with(error)
                if item.state != ERROR:
                    self.local.cancel(stream)
        ended = failure is not None or (stream.call.ended and not stream.call.buffered)
        if ended:
            self._streams.pop(name, None)
        return items, ended, failure

    def close_stream(self, reply: Reply, name: str) -> None:
        """Close a generator whose items nobody wants."""
        stream = self._streams.pop(name, None)
        if stream is not None:
            self.local.cancel(stream)
        reply.set_result(pickle.dumps(stream is not None))

    # Actors.

    def _actor(self, actor: str) -> "HostedActor":
        """Return an actor, also one whose construction is still on its way."""
        with self._lock:
            return self._actors.setdefault(actor, HostedActor(self))

    def construct(self, reply: Reply, record: ActorRecord, *call: Any) -> None:
        """Make an actor."""
        *arguments, holder = call
        self._actor(record.actor).construct(reply, record, arguments, holder)

    def call(self, reply: Reply, actor: str, place: tuple[str, int, int], *call: Any) -> None:
        """Call a method, in its caller's order."""
        self._actor(actor).arrived(reply, place, call)

    def hold_actor(self, reply: Reply, actor: str, holder: str) -> None:
        """Keep an actor for one more program."""
        self._actor(actor).hold(holder)
        reply.set_result(pickle.dumps(None))

    def drop_actor(self, reply: Reply, actor: str, holder: str) -> None:
        """Keep an actor for one program less; one without a name ends after the last."""
        self._actor(actor).drop(holder)
        reply.set_result(pickle.dumps(None))

    def kill_actor(self, reply: Reply, actor: str, reason: str) -> None:
        """End an actor."""
        detached = self._actor(actor).end(reason)
        reply.set_result(pickle.dumps(None))
        if detached:  # its session was its own
            self.context._ask_all("end_session")

    def actor_lives(self, reply: Reply, actor: str) -> None:
        """Answer whether an actor lives, or is on its way."""
        reply.set_result(pickle.dumps(self._actor(actor).dead is None))

    # The end.

    def drain(self, reply: Reply, cancel: bool) -> None:
        """Answer when what this process submitted is done, with how much that was."""
        reply.set_result(pickle.dumps(self.context.count_drained(cancel)))

    def close(self) -> None:
        """End everything of the session in this process."""
        for actor in list(self._actors.values()):
            actor.end("its context was shut down")
        self._streams.clear()
        if self._local is not None:
            self._local.abort()
        self.context.end_in_worker()


def answer_with(reply: Reply, act: Callable[[], Any]) -> None:
    """Answer with what an act returns, or raise there what it raises."""
    try:
        reply.set_result(pickle.dumps(act()))
    except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for the answer
        reply.set_exception(error)


class HostedActor:
    """One actor: puts calls in the order of their callers, unpacks each, and lets the thread pool run it."""

    def __init__(self, host: Host) -> None:
        self._host = host
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
            cls, args, kwargs = self._host.arguments(*arguments)
            self._host.context.await_arrivals()
            options = ActorOptions(max_concurrency=record.options.max_concurrency)
            handle = self._host.local._start_actor(cls, args, kwargs, options)
            self._endpoint = handle._endpoint
            actor = self._endpoint.actor
            made = [call for call in list(actor.open_calls) if call.kind == "construct"]
            if made:
                self._answer_later(reply, made[0].ref, lambda _: None)
            elif actor.dead:
                raise outcome_error(actor)
            else:
                reply.set_result(pickle.dumps(("value", pack(self._host.context, None, "").data)))

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
        _, args, kwargs = self._host.arguments(data, slots, keys)
        self._host.context.await_arrivals()
        thing = self._endpoint.call(method, args, kwargs)
        if isinstance(thing, EngineStream):
            reply.set_result(pickle.dumps(("stream", self._host.keep_stream(thing))))
            return
        keeper = self._record.actor if self._record else ""
        self._answer_later(
            reply, thing, lambda value: self._host.packed(value, f"the result of {label}", keeper)
        )

    def _answer_later(self, reply: Reply, ref: Any, packed: Callable[[Any], Any]) -> None:
        def settle(future: "Future[Any]") -> None:
            def act() -> None:
                reply.set_result(pickle.dumps(("value", packed(future.result()))))

            self._answering(reply, act)

        EngineFuture(ref, self._host.context.callbacks.run).add_done_callback(settle)

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
            from fray._contracts.context import ActorHandle

            self._host.local.kill(ActorHandle(endpoint))
        if self._intake is not None:
            self._intake.close()
        return self._record is not None and self._record.detached


def outcome_error(actor: Any) -> BaseException:
    """Return why a local actor is dead, as its constructor's failure."""
    death: BaseException = actor._death.load()
    return death.__cause__ or death
