"""`EngineContext`: a whole context over a `RemoteEngine`.

The program that made the context and every worker that runs one of its calls have an `EngineContext` each,
over the same engine: a session. Each keeps the books of what was submitted there, with the engine room's
own `Engine`; what crosses are keys, records of actors and bytes.
"""

import itertools
import os
import pickle
import random
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from fray._contexts.remote.actors import ActorCaller, ActorRecord
from fray._contexts.remote.ending import SessionEnding
from fray._contexts.remote.names import ActorNames
from fray._contexts.remote.runner import EngineRunner
from fray._contexts.remote.threads import Fresh, SerialThread
from fray._contexts.remote.travel import Travelling
from fray._contexts.remote.values import StoredKey, pack
from fray._contexts.runner_context import TaskRunnerContext
from fray._contracts.context import ActorHandle, actor_methods
from fray._contracts.remote_engine import Key, RemoteEngine
from fray._engine.actors import Actor, EngineEndpoint
from fray._engine.calls import dispatch
from fray._engine.refs import VALUE, EngineRef
from fray._engine.scope import Scope
from fray._serialization.functions import is_async_class, is_generator_function
from fray._serialization.values import callable_name
from fray._values.capabilities import ContextCapabilities
from fray._values.checks import check_count
from fray._values.errors import ActorAlreadyExistsError, TaskCancelledError, WorkerDiedError
from fray._values.options import ActorOptions, Lifetime

T = TypeVar("T")
_PORTABLE = ContextCapabilities(serializes=True, retries=False)


class Session(NamedTuple):
    """What the workers have to know of a context."""

    name: str
    namespace: str
    packed: bytes
    """The engine and these, for a worker."""

    @classmethod
    def make(cls, kind: type, remote: RemoteEngine, namespace: str) -> "Session":
        """Return a new one."""
        name = uuid4().hex[:16]
        return cls(name, namespace, pickle.dumps((kind, name, namespace, remote)))


def capabilities_of(engine: Any, **more: Any) -> ContextCapabilities:
    """Return what a context over an engine can do: what follows from the primitives that it has."""
    asks, swaps, claims = (hasattr(engine, name) for name in ("ask", "swap", "claim"))
    apart = bool(engine.processes)
    return _PORTABLE.but(
        isolation=apart,
        streams=asks,
        parked_streams=asks,
        nested_tasks=hasattr(engine, "lend"),
        actors=asks,
        concurrent_actors=asks,
        async_actors=asks,
        named_actors=asks and swaps,
        detached_actors=asks and swaps,
        shared_actors=asks and swaps and apart,
        max_restarts=asks and apart,
        at_most_once=claims,
        retries=claims and apart,
        **more,
    )


class EngineContext(Travelling, SessionEnding, TaskRunnerContext):
    """Every promise of a context, over the primitives of a remote engine.

    A backend inherits it, names its engine's class in `engine_type`, and hands one to `__init__`. The
    workers need `fray-local`, whose threads run actors and streams there.

    Args:
        remote: The engine; this context closes it.
        max_workers: A hint: the engine's workers are what they are.
        num_cpus: A hint.
        memory: A hint.
        max_retries: Of every task that does not say otherwise.
        namespace: Whose named actors are shared, with all programs on the engine that say the same.
        session: Of a context in a worker; None for a program's own.
    """

    engine_type: ClassVar[Any] = None
    """The class of the engine; `capabilities` follow from the primitives that it has."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.engine_type is not None and "capabilities" not in vars(cls):
            cls.capabilities = capabilities_of(cls.engine_type)

    def __init__(
        self,
        remote: RemoteEngine,
        max_workers: int | None = None,
        *,
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
        session: Session | None = None,
    ) -> None:
        del num_cpus, memory  # hints: the engine has what it has
        if max_workers is not None:
            check_count("max_workers", max_workers, 1)
        self.remote = remote
        family = namespace or os.environ.get("FRAY_JOB_FAMILY") or "default"
        self._session, self._namespace = session, family
        self.is_root = session is None
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self.names = ActorNames(self)
        self.callbacks = Fresh("fray-callback")
        self._settler = SerialThread("fray-engine")
        self._numbers = itertools.count(1)
        self.made_keys = 0
        self.kept: dict[str, list[Any]] = {}  # what results name, by who returned it
        self._keys: WeakKeyDictionary[EngineRef[Any], Key] = WeakKeyDictionary()
        self._held: WeakSet[StoredKey] = WeakSet()
        self._placed: Counter[str] = Counter()
        self._known: tuple[str, ...] = ()
        self._endpoints: WeakValueDictionary[str, EngineEndpoint] = WeakValueDictionary()
        self._actors: WeakValueDictionary[str, Actor] = WeakValueDictionary()  # with calls of dropped handles
        Travelling.__init__(self)
        SessionEnding.__init__(self)
        TaskRunnerContext.__init__(self, EngineRunner(), max_retries=max_retries)
        self.capabilities = type(self).capabilities if self.engine_type else capabilities_of(remote)

    @property
    def session(self) -> Session:
        """What the workers have to know of this context; made at its first use, with the engine's address."""
        if self._session is None:
            made = Session.make(type(self), self.remote, self._namespace)
            self._session = self._session or made
        return self._session

    # What its parts need of it.

    def post(self, act: Callable[..., object], *arguments: Any) -> None:
        """Run an act on this context's thread: callbacks of the engine leave its own at once."""
        self._settler.run(partial(act, *arguments))

    def key_of(self, ref: EngineRef[Any]) -> Key:
        """Return what the engine calls a reference's value, chosen now where that has no name yet."""
        key = self._keys.get(ref)
        return self._keys.setdefault(ref, self.new_key()) if key is None else key

    def new_key(self) -> Key:
        """Return a key that is nobody's."""
        self.made_keys = number = next(self._numbers)
        return f"fray-{self.session.name}-{self.holder}-{number}"

    def hold(self, key: Key) -> StoredKey:
        """Return what holds a key in the engine for as long as it lives."""
        held = StoredKey(self, key, self.release)
        self._held.add(held)
        return held

    def release(self, key: Key) -> None:
        """Let go of a key; a finalizer calls this."""
        if not self.ended:
            self.remote.release([key])

    def fetch(self, key: Key) -> bytes:
        """Return the value of a key.

        Raises:
            WorkerDiedError: It was lost.
        """
        try:
            return bytes(self.remote.fetch([key])[0])
        except Exception as error:
            raise WorkerDiedError(
                f"a value was lost with the worker that kept it, and its task does not run again: {error}"
            ) from error

    def ask(self, worker: str, act: str, *arguments: Any, session: bytes | None = None) -> "Future[bytes]":
        """Ask a worker's side of this session, or of the one that is given."""
        request = pickle.dumps((session or self.session.packed, act, arguments))
        answer: Future[bytes] = self.remote.ask(worker, request)  # type: ignore[attr-defined]
        return answer

    def tell(self, worker: str, act: str, *arguments: Any, session: bytes | None = None) -> None:
        """Ask without interest in the answer; from a finalizer too."""
        if not self.ended:
            self.post(lambda: self.ask(worker, act, *arguments, session=session))

    def choose_worker(self, without: str = "") -> str:
        """Return the worker on which this context has placed the fewest actors and streams."""
        known = [name for name in self.remote.workers() if name != without]
        if not known:
            raise WorkerDiedError("the engine has no worker")
        random.shuffle(known)
        worker = min(known, key=self._placed.__getitem__)
        self._placed[worker] += 1
        return worker

    def lives(self, record: ActorRecord) -> bool:
        """Ask where an actor lives whether it does; False as well where its worker is gone."""
        try:
            answer = self.ask(record.worker, "actor_lives", record.actor, session=record.session)
            return bool(pickle.loads(answer.result()))
        except Exception:  # noqa: BLE001 - the engine's own error for a worker that is gone
            return False

    # Tasks.

    def put(self, obj: T, /) -> EngineRef[T]:
        """Store a value in the engine; see `JobContext.put`."""
        self.engine.scope.check_open()
        packed = pack(self, obj, "the object given to put()")
        held = self.hold(self.new_key())
        held.kept = packed.kept
        self.remote.store(held.key, packed.data)
        ref: EngineRef[T] = self.engine.put(held)
        self._keys[ref] = held.key
        return ref

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Return the value of a reference, or of each in a list; see `JobContext.get`."""
        if not isinstance(ref, list):
            return super().get(ref, timeout=timeout)
        refs = [one for one in ref if isinstance(one, EngineRef)]
        if any(one.state != VALUE for one in refs):
            self._await_all(refs, timeout)
        fetched = self._fetch_ahead({one.content for one in refs if isinstance(one.content, StoredKey)})
        try:
            return super().get(ref, timeout=timeout)
        finally:
            for held in fetched:
                held.data = None

    def _fetch_ahead(self, wanted: set[StoredKey]) -> list[StoredKey]:
        """Let the engine move many values at once; of those that were lost each `load` tells."""
        missing = [held for held in wanted if held.data is None]
        if len(missing) < 2:
            return []
        try:
            values = self.remote.fetch([held.key for held in missing])
        except Exception:  # noqa: BLE001 - whoever reads the lost one hears of it
            return []
        for held, value in zip(missing, values, strict=True):
            held.data = bytes(value)
        return missing

    def cancel(self, ref: Any, /) -> bool:
        """Cancel what has not started; see `JobContext.cancel`."""
        if super().cancel(ref):
            return True
        call = ref.call if isinstance(ref, EngineRef) else None
        return call is not None and call.kind == "task" and self._cancel_submitted(call)

    def _cancel_submitted(self, call: Any) -> bool:
        """Claim a call that waits in the engine, so that no worker runs it; False where one does."""
        held = call.state
        if call.over or not isinstance(held, StoredKey) or not hasattr(self.remote, "claim"):
            return False
        if self.remote.claim(held.key, CANCELLED):
            return False
        dispatch(call.fail(TaskCancelledError(f"{call.label} was cancelled before it started")))
        return True

    def _map_window(self) -> int:
        return max(16, 4 * int(sum(self.remote.workers().values())))

    # Actors.

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        self.engine.scope.check_open()
        packed = self._runner.pack(cls, args, kwargs)
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        detached = options.lifetime is Lifetime.DETACHED
        session = self.session
        if detached:  # its context is nobody else's
            session = Session.make(type(self), self.remote, session.namespace)
        record = ActorRecord(
            uuid4().hex,
            self.choose_worker(),
            session.packed,
            callable_name(cls),
            methods,
            is_async_class(cls),
            options,
        )
        if options.name is not None and (other := self.names.register(record)) is not None:
            if options.get_if_exists:
                return ActorHandle(self.endpoint_of(other))
            raise ActorAlreadyExistsError(options.name)
        endpoint = self._new_endpoint(record)
        caller = endpoint.actor.runner
        assert isinstance(caller, ActorCaller)
        caller.owned = not detached
        if options.name is None:
            endpoint.close_when_dropped()
        else:
            endpoint.actor.on_death.append(lambda: self.post(self.names.forget, caller.record))
        try:
            endpoint.actor.construct(packed)
        except BaseException as error:
            dispatch(endpoint.actor.die("it could not be made: {cause}", error))
            raise
        return ActorHandle(endpoint)

    def _new_endpoint(self, record: ActorRecord) -> EngineEndpoint:
        actor = self.engine.new_actor(
            record.class_name,
            record.methods,
            record.options,
            asynchronous=record.asynchronous,
            scope=Scope(_nothing) if record.detached else None,
        )
        assert isinstance(actor.runner, ActorCaller)
        actor.runner.record = record
        endpoint = self._endpoint(actor)
        return self._endpoints.setdefault(record.actor, endpoint)

    def endpoint_of(self, record: ActorRecord) -> EngineEndpoint:
        """Return what handles here of an actor of any program share."""
        known = self._endpoints.get(record.actor)
        if known is not None and not known.actor.dead:
            return known
        self._endpoints.pop(record.actor, None)
        if record.options.name is not None:
            actor = self._actors.get(record.actor)
            if (
                actor is not None and not actor.dead
            ):  # calls of a handle that was dropped are still on their way
                return self._endpoints.setdefault(record.actor, self._endpoint(actor))
        endpoint = self._new_endpoint(record)
        if record.options.name is None:
            name = endpoint.actor.runner.name  # type: ignore[attr-defined]
            self.await_later(
                self.ask(record.worker, "hold_actor", record.actor, name, session=record.session)
            )
            endpoint.close_when_dropped()
        else:
            self._actors[record.actor] = endpoint.actor
        endpoint.actor.open()
        return endpoint

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name, of any program of the namespace."""
        self.engine.scope.check_open()
        return ActorHandle(self.endpoint_of(self.names.find(name)))

    def kill(self, handle: Any, /) -> None:
        """End an actor, whoever made it; see `JobContext.kill`."""
        if isinstance(handle, ActorHandle) and isinstance(handle._endpoint, EngineEndpoint):
            caller = handle._endpoint.actor.runner
            if isinstance(caller, ActorCaller) and not handle._endpoint.actor.dead:
                record = caller.record
                if record.options.name is not None:
                    self.names.forget(record)
                self.tell(record.worker, "kill_actor", record.actor, "it was killed", session=record.session)
        super().kill(handle)


CANCELLED = "cancelled"
"""Who claims a call that is to run nowhere."""


def _nothing() -> None:
    """Calls of detached actors are counted in a scope that nobody waits for."""
