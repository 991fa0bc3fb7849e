"""A context whose tasks and actors live inside this process; where its jobs run is left open."""

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from weakref import WeakSet

from fray._engine.actors import Actor, ActorProducer, ActorTask, Endpoint, Mailbox
from fray._engine.forks import disown_in_children
from fray._engine.futures import LocalFuture
from fray._engine.pool import ThreadPool, WorkerPool, blocking
from fray._engine.refs import (
    ERROR,
    VALUE,
    LocalRef,
    Packed,
    await_refs,
    outcome,
    reduce_by_identity,
    timed_out,
    value_ref,
)
from fray._engine.scope import Scope
from fray._engine.streams import LocalStream, Producer
from fray._engine.tasks import Call, Task, cancel_ref, ref_of_future
from fray._engine.waiting import block_until_ready, ready_positions
from fray._serialization.functions import is_generator_function
from fray._serialization.values import callable_name, dumps_call
from fray._values.checks import check_count
from fray._values.errors import (
    ActorAlreadyExistsError,
    ActorNotFoundError,
    UnsupportedError,
)
from fray.job import ActorHandle, ActorOptions, ContextBase, Lifetime, TaskOptions

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound=Call)


class _Detached:
    """Where detached actors live: they belong to the process, not to the context that made them."""

    def __init__(self) -> None:
        self.scope = Scope(lambda: None)
        self.lock = threading.Lock()
        self.named: dict[str, Endpoint] = {}

    def disown(self) -> None:
        """In a forked child: have none; their threads are the parent's."""
        self.scope.disown()
        self.scope, self.lock, self.named = Scope(lambda: None), threading.Lock(), {}


_detached = _Detached()
disown_in_children(_detached)


class InProcessContext(ContextBase):
    """Every promise of a context, kept in one process; a backend says where its tasks run.

    A task is handed to the pool once its arguments are there. Actors have a thread each, unless
    `_mailbox` says otherwise.

    Args:
        pool: Where ready tasks run; the context closes it at its own end.
        check_serialization: Pickle arguments and results as a cluster would.
        stream_buffer: Items that a generator task may be ahead of its consumer.
    """

    def __init__(
        self, pool: WorkerPool, *, check_serialization: bool = False, stream_buffer: int = 16
    ) -> None:
        check_count("stream_buffer", stream_buffer, 1)
        self._pool, self._checked, self._stream_buffer = pool, check_serialization, stream_buffer
        self._scope = Scope(self._end)
        self._lock = threading.Lock()
        self._named: dict[str, Endpoint] = {}
        self._actors: WeakSet[Actor] = WeakSet()
        self._streams: WeakSet[Producer] = WeakSet()
        self._mailboxes: WeakSet[Mailbox] = WeakSet()  # a thread keeps its own alive
        if not pool.inline:
            disown_in_children(self)

    def _mailbox(self, label: str) -> Mailbox:
        """Return where the calls of one actor run."""
        return ThreadPool(0, f"fray-actor-{label}", lends=False)

    def put(self, obj: T, /) -> LocalRef[T]:
        """Store a value; in this process that is a reference to the very object, or with checks to a copy."""
        return value_ref(Packed(obj, "the object given to put()") if self._checked else obj)

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Return the value of a reference, or of each in a list; see `JobContext.get`."""
        if isinstance(ref, LocalRef):
            if not ref._state:
                self._await([ref], timeout)
            return outcome(ref)
        if isinstance(ref, list):
            refs = list(dict.fromkeys(one for one in ref if isinstance(one, LocalRef)))
            if not all(one._state == VALUE for one in refs):
                self._await(refs, timeout)
            failed = next((one for one in refs if one._state == ERROR), None)
            if failed is not None:
                return outcome(failed)
            return [outcome(one) if isinstance(one, LocalRef) else one for one in ref]
        return ref

    def _await(self, refs: Sequence[LocalRef[Any]], timeout: float | None) -> None:
        """Block until all are settled or one has failed."""
        self._scope.check_owner()
        self._check_progress(timeout)
        with blocking():
            if not await_refs(refs, len(refs), timeout, stop_on_error=True):
                raise timed_out(timeout, refs)

    def _lending(self) -> AbstractContextManager[None]:
        return blocking()

    def _check_progress(self, timeout: float | None) -> None:
        """Raise where blocking could never end."""

    def wait(
        self, refs: Sequence[R], /, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[R], list[R]]:
        """Return the first `num_returns` ready ones and the others, in input order; see `JobContext.wait`."""
        if num_returns < 1:
            raise ValueError(f"num_returns must be 1 or more, got {num_returns!r}")
        needed = min(num_returns, len(refs))
        ready = ready_positions(refs, needed)
        if len(ready) < needed and timeout != 0:
            self._scope.check_owner()
            self._check_progress(timeout)
            ready = block_until_ready(refs, needed, timeout)
        if len(ready) == 1:  # the common call, in a loop over many: one copy instead of a test for each
            pending = list(refs)
            return [pending.pop(ready[0])], pending
        chosen = set(ready)
        return [refs[i] for i in ready], [ref for i, ref in enumerate(refs) if i not in chosen]

    def cancel(self, ref: Any, /) -> bool:
        """Cancel what has not started, a stream also between two items; a running function goes on."""
        if isinstance(ref, LocalStream):
            return ref._producer.cancel()
        if isinstance(ref, LocalRef):
            return cancel_ref(ref)
        raise ValueError(f"cancel takes what run() returned, got {ref!r}")

    def _future(self, ref: Any) -> "Future[Any]":
        return LocalFuture(ref)

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not callable(fn):
            raise ValueError(f"a task needs a function, got {fn!r}")
        if options.runtime_env:
            raise UnsupportedError(
                f"{type(self).__name__} runs tasks in this process and cannot give one an environment "
                "of its own; use 'process' or 'ray', or launch a job with create_environment(...)"
            )
        if is_generator_function(fn):
            producer = self._make(Producer, fn, args, kwargs, self._pool, limit=self._stream_buffer)
            stream: LocalStream[Any] = LocalStream(producer)
            producer.begin()
            return stream
        task = self._make(Task, fn, args, kwargs, self._pool)
        ref = task.ref
        task.begin()
        return ref

    def _make(
        self,
        kind: type[C],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pool: Any,
        *,
        scope: Scope | None = None,
        **more: Any,
    ) -> C:
        """Make a call of a kind with what this context decides, counted in its scope."""
        for arg in args:
            if isinstance(arg, Future):
                args = tuple(map(_future_as_ref, args))
                break
        if kwargs:
            kwargs = {key: _future_as_ref(arg) for key, arg in kwargs.items()}
        if self._checked:
            fn, args, kwargs = _copied(kind, fn, args, kwargs)
        scope = scope or self._scope
        scope.enter()
        call = kind(fn, args, kwargs, scope=scope, pool=pool, owner=self, checked=self._checked, **more)
        if isinstance(call, Producer):
            self._streams.add(call)
        return call

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        detached = options.lifetime is Lifetime.DETACHED
        home = _detached if detached else self
        scope = _detached.scope if detached else self._scope
        with self._lock, _detached.lock:
            existing = self._find(options.name)
            if existing is not None:
                if options.get_if_exists:
                    return ActorHandle(existing)
                raise ActorAlreadyExistsError(str(options.name))

            def make(kind: Any, fn: Any, args: Any, kwargs: Any, pool: Any) -> Any:
                more = {"limit": self._stream_buffer} if issubclass(kind, Producer) else {}
                return self._make(kind, fn, args, kwargs, pool, scope=scope, **more)

            mailbox = self._mailbox(options.name or callable_name(cls))
            actor = Actor(cls, options, mailbox, make)
            endpoint = Endpoint(actor)
            if options.name is not None:
                names = home.named if isinstance(home, _Detached) else home._named
                names[options.name] = endpoint
                actor.on_death = lambda: _forget(names, endpoint)
        if options.name is None:
            endpoint.close_when_dropped()
        if not detached:
            self._actors.add(actor)
            self._mailboxes.add(mailbox)
        actor.construct(cls, args, kwargs)
        return ActorHandle(endpoint)

    def _find(self, name: str | None) -> Endpoint | None:
        if name is None:
            return None
        return self._named.get(name) or _detached.named.get(name)

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name, of this context or detached in this process."""
        endpoint = self._find(name)
        if endpoint is None:
            raise ActorNotFoundError(name, sorted({*self._named, *_detached.named}))
        return ActorHandle(endpoint)

    def kill(self, handle: Any, /) -> None:
        """End an actor; a method that runs goes on to its end, and its caller does not hear of it."""
        if not isinstance(handle, ActorHandle) or not isinstance(handle._endpoint, Endpoint):
            raise ValueError(f"kill takes a handle that create_actor or get_actor returned, got {handle!r}")
        handle._endpoint.actor.die("it was killed")

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """End the context; see `JobContext.shutdown`."""
        if self._scope.foreign:
            return
        self._closed = True
        self._scope.close(cancel=cancel_pending)
        if not wait or self._scope.inside():  # a task cannot wait for its own end
            return
        with blocking():
            self._scope.wait()
            pools: list[WorkerPool | Mailbox] = [self._pool, *self._mailboxes]
            for pool in pools:
                pool.close(wait=True)

    def disown(self) -> None:
        """In a forked child: be of no use, and wait for nothing."""
        self._scope.disown()

    def _end(self) -> None:
        """All that was submitted is done: end the streams that nobody reads, the actors, the threads."""
        for producer in list(self._streams):
            producer.abandon()
        for actor in list(self._actors):
            actor.die("its context was shut down")
        self._pool.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)


def _future_as_ref(arg: Any) -> Any:
    return ref_of_future(arg) if isinstance(arg, Future) else arg


def _copied(
    kind: type[Call], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the call as another process would get it; an actor's method stays the instance's own."""
    copied, args, kwargs = pickle.loads(dumps_call(fn, args, kwargs))
    return (fn if issubclass(kind, ActorTask | ActorProducer) else copied), args, kwargs


def _forget(names: dict[str, Endpoint], endpoint: Endpoint) -> None:
    name = endpoint.actor.name
    if name is not None and names.get(name) is endpoint:
        del names[name]
