"""The context inside a worker: it holds names; what they name lives in the caller's process."""

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

from fray import GetTimeoutError, UnsupportedError, WrongProcessError
from fray.backend import (
    TaskFuture,
    callable_name,
    current_context_var,
    disown_in_children,
    find_by_identity,
    is_async_class,
    is_generator_function,
    seconds,
    set_foreign_finder,
    unpack_exception,
)
from fray.job import (
    ActorEndpoint,
    ActorHandle,
    ActorOptions,
    ContextBase,
    Lifetime,
    TaskOptions,
    actor_methods,
)
from fray_local._process.capabilities import CAPABILITIES
from fray_local._process.protocol.callbacks import CallbackThreads, settle_future
from fray_local._process.protocol.messages import (
    CallActor,
    CancelRef,
    CreateActor,
    FindActor,
    Get,
    GetActor,
    Kill,
    Lend,
    Promise,
    Put,
    Reclaim,
    Run,
    SentFunction,
    Settle,
    Wait,
)
from fray_local._process.protocol.serialization import (
    SerializedCall,
    SerializedFunction,
    pack,
    serialize_call,
)
from fray_local._process.protocol.values import ERROR, VALUE, Blob, Budget
from fray_local._process.worker.incoming_calls import blob_of_error
from fray_local._process.worker.outbox import Outbox
from fray_local._process.worker.owner_requests import OwnerRequests, keys_of
from fray_local._process.worker.proxies import Owner, Proxy, RemoteEndpoint, RemoteRef, RemoteStream

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
_Options = TypeVar("_Options", TaskOptions, ActorOptions)

_MOST_UNASKED = 1 << 20
"""Bytes from which on `put` requests room and waits; below, the wait would be most of its time."""
_COPIES = "a copy of the context inside a worker cannot be closed there; leave that to its owner"


class RemoteFuture(TaskFuture):
    """Settles as a reference does; cancelling it cancels the reference's task."""

    abandon: Callable[[], None] | None = None  # for one that waits and gives up


class WorkerContext(ContextBase):
    """`get_job_context()` inside a task of a `ProcessContext`."""

    capabilities = CAPABILITIES

    def __init__(self, number: int, owner: Owner, outbox: Outbox) -> None:
        self.owner, self.requests = owner, OwnerRequests(outbox)
        self.ask, self._tell, self.refcounts = self.requests.ask, self.requests.tell, self.requests.refcounts
        self.budget = Budget()
        self._callbacks = CallbackThreads()
        self._number, self._ids = number, count()
        set_foreign_finder(self._resolve)
        disown_in_children(self)

    def disown(self) -> None:
        """In a forked child, where nobody would answer this context: another one is current there."""
        set_foreign_finder(None)
        if current_context_var.get(None) is self:
            current_context_var.set(None)
        self.requests.disown()

    @contextlib.contextmanager
    def _lending(self) -> Iterator[None]:
        """Free the worker's place while its task waits in an event loop for what other threads request."""
        self._tell(Lend())
        try:
            yield
        finally:
            self._tell(Reclaim())

    def _new_key(self) -> Any:
        return self._number, next(self._ids)

    def put(self, obj: T, /) -> RemoteRef[T]:
        """Store a value with the owner.

        Raises:
            ObjectStoreFullError: There is no room; for less than a mebibyte, `get` raises it instead.
        """
        blob = pack(obj, "the object given to put()", self.budget)
        # Before the message: if the task is interrupted behind that, its end releases the value.
        ref: RemoteRef[T] = self._named(streaming=False)
        if blob.segment is None or blob.segment.size < _MOST_UNASKED:
            self._tell(Put(ref.key), blobs=[blob])
        else:
            self.ask(Put(ref.key), blobs=[blob])  # there may be no room
        return ref

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Return the value of a reference, or of each in a list; see `JobContext.get`."""
        if isinstance(ref, list):
            wanted = list(dict.fromkeys(one for one in ref if type(one) is RemoteRef))
            values = dict(zip(wanted, self._get(wanted, timeout), strict=True))
            return [values[one].load() if type(one) is RemoteRef else one for one in ref]
        return self._get([ref], timeout)[0].load() if type(ref) is RemoteRef else ref

    def _get(self, refs: list[RemoteRef[Any]], timeout: float | None) -> list[Blob]:
        missing = [ref.key for ref in refs if ref.blob is None]
        if not missing:
            return [cast("Blob", ref.blob) for ref in refs]
        values = self._values_of(missing, timeout)
        arrived = dict(zip(missing, values, strict=True))
        return [arrived.get(ref.key) or cast("Blob", ref.blob) for ref in refs]

    def _values_of(self, keys: list[Any], timeout: float | None) -> list[Blob]:
        """Return the values of references once all are there; a look at the end counts, as with `wait`."""
        limit = seconds(timeout)
        if limit != 0:
            with contextlib.suppress(GetTimeoutError):  # or it is the task's own, and the look raises it
                return self.ask(Get(keys, now=False), timeout=limit)[1]
        there, values = self.ask(Get(keys, now=True))
        if not there:
            raise GetTimeoutError(f"no result within {timeout} s; the tasks go on")
        return values

    def wait(
        self, refs: Sequence[R], /, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[R], list[R]]:
        """Return the first `num_returns` ready ones and the others; see `JobContext.wait`."""
        refs = list(refs)
        if not hasattr(num_returns, "__index__") or num_returns < 1:
            raise ValueError(f"num_returns must be an int of 1 or more, got {num_returns!r}")
        for ref in refs:
            if not isinstance(ref, RemoteRef | RemoteStream):
                raise ValueError(f"wait takes what put() and run() return, got {ref!r}")
        keys = [cast("Proxy", ref).key for ref in refs]
        needed = min(num_returns, len(refs))
        try:
            found, _ = self.ask(Wait(keys, needed, timeout == 0), timeout=timeout or None)
        except GetTimeoutError:
            found, _ = self.ask(Wait(keys, needed, now=True))
        ready = set(found)
        return [refs[i] for i in sorted(ready)], [ref for i, ref in enumerate(refs) if i not in ready]

    def cancel(self, ref: Any, /) -> bool:
        """Stop a task; see `JobContext.cancel`."""
        if not isinstance(ref, RemoteRef | RemoteStream):
            raise ValueError(f"cancel takes what run() returned, got {ref!r}")
        return bool(self.ask(CancelRef(ref.key))[0])

    def _future(self, ref: Any) -> "Future[Any]":
        if type(ref) is not RemoteRef:
            plain: Future[Any] = Future()
            plain.set_result(ref)
            return plain
        future = RemoteFuture(partial(self.cancel, ref))

        def hand(error: Blob | None, _: Any, values: list[Blob]) -> None:
            # Unpickling, and what waits for the future, may use the context: not in the listener's thread.
            self._callbacks.do(partial(settle_future, future, lambda: _outcome(error, values)))

        if ref.blob is not None:
            settle_future(future, ref.blob.load)
        else:
            number = self.requests.ask_later(Get([ref.key], now=False), (), hand)
            future.abandon = partial(self.requests.withdraw, number)
        return future

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not callable(fn):
            raise ValueError(f"a task needs a function, got {fn!r}")
        packed, refs = self._pack(fn, args, kwargs)
        streaming = is_generator_function(fn)
        made = self._named(streaming)
        function, places = _call_details(packed, refs)
        label = options.name or callable_name(fn)
        run = Run(made.key, function, places, label, _for_owner(options), streaming)
        self._tell(run, blobs=[packed.blob])
        return made

    def _named(self, streaming: bool) -> Any:
        """Return a reference or stream of a new key, before the message that gives the key its meaning."""
        return RemoteStream(self, self._new_key()) if streaming else RemoteRef(self, self._new_key())

    def call_actor(
        self,
        endpoint: RemoteEndpoint,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        streaming: bool,
    ) -> Any:
        """Queue a call of an actor's method."""
        packed, refs = self._pack(None, args, kwargs)
        made = self._named(streaming)
        _, places = _call_details(packed, refs)
        self._tell(CallActor(made.key, endpoint.key, method, places), blobs=[packed.blob])
        return made

    def _pack(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[SerializedCall, Sequence[RemoteRef[Any]]]:
        args = tuple(self._promised(arg) if isinstance(arg, Future) else arg for arg in args)
        kwargs = {
            name: self._promised(arg) if isinstance(arg, Future) else arg for name, arg in kwargs.items()
        }
        return serialize_call(fn, args, kwargs, RemoteRef, self.budget)

    def _promised(self, future: "Future[Any]") -> RemoteRef[Any]:
        """Return a reference that settles as a future of this process does."""
        promised: RemoteRef[Any] = self._named(streaming=False)
        key = promised.key
        self._tell(Promise(key))

        def settle(done: "Future[Any]") -> None:
            try:
                state, blob = VALUE, pack(done.result(), "the result of a future", self.budget)
            except BaseException as error:  # noqa: BLE001 - whatever it raised is what the task gets
                state, blob = ERROR, blob_of_error(error)
            self._tell(Settle(key, state), blobs=[blob])

        future.add_done_callback(settle)
        return promised

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        packed, refs = self._pack(cls, args, kwargs)
        function, places = _call_details(packed, refs)
        # A name may be taken, which has to be asked; another actor can be had without an answer.
        alone = options.name is None and options.lifetime is not Lifetime.DETACHED
        key = self._new_key() if alone and self.requests.inside_a_message() else None
        label = callable_name(cls)
        asynchronous = is_async_class(cls)
        request = CreateActor(function, places, label, methods, _for_owner(options), asynchronous, key)
        if key is None:
            return self._handed(*self.ask(request, blobs=[packed.blob]))
        self._tell(request, blobs=[packed.blob])
        return ActorHandle(RemoteEndpoint(self, key, label, methods, None))

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name; see `JobContext.get_actor`."""
        return self._handed(*self.ask(GetActor(name)))

    def _handed(self, answer: tuple[Any, bytes], _: list[Blob]) -> ActorHandle:
        key, data = answer
        handle: ActorHandle = pickle.loads(data)
        self.refcounts.append((key, -1))  # which kept the actor on its way here
        return handle

    def endpoint_at(self, address: tuple[str, str, str]) -> ActorEndpoint:
        """Return the endpoint of an actor whose handle came from another process."""
        return self._handed(*self.ask(FindActor(address)))._endpoint

    def kill(self, handle: Any, /) -> None:
        """End an actor; see `JobContext.kill`."""
        endpoint = getattr(handle, "_endpoint", None)
        if not isinstance(endpoint, RemoteEndpoint):
            raise ValueError(f"kill takes a handle that create_actor or get_actor returned, got {handle!r}")
        self.ask(Kill(endpoint.key))

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """Refuse: only the owner ends its context."""
        raise UnsupportedError(_COPIES)

    def __exit__(self, *reason: object) -> None:
        """Leave it open: this is a copy, and its owner ends it."""

    def _map_window(self) -> int:
        return max(16, 4 * (os.cpu_count() or 1))

    def _resolve(self, process: str, pid: int, key: Any, kind: str) -> Any:
        owner = self.owner
        if process != owner.process or pid != owner.pid:
            raise WrongProcessError(
                f"a {kind} of process {pid} arrived in process {os.getpid()}, which belongs to process "
                f"{owner.pid}: references and unnamed actors stay within one context; pass values, or "
                "name the actor"
            )
        if key == owner.context_key:
            return self
        if kind not in (RemoteRef._KIND, RemoteStream._KIND, RemoteEndpoint._KIND):
            raise WrongProcessError(
                f"a {kind} that is not the one which runs this task arrived in a worker: pass values, or use "
                "get_job_context()"
            )
        self.refcounts.append((key, 1))
        return RemoteStream(self, key) if kind == RemoteStream._KIND else RemoteRef(self, key)

    def __reduce__(self) -> tuple[Any, ...]:
        owner = self.owner
        return find_by_identity, (owner.process, owner.pid, owner.context_key, owner.context_kind)


def _for_owner(options: _Options) -> _Options:
    """Return options without those of other backends, which may be objects that do not travel."""
    return replace(options, backend={}) if options.backend else options


def _outcome(error: Blob | None, values: list[Blob]) -> Any:
    if error is not None:
        raise unpack_exception(error.data)
    return values[0].load()


def _call_details(
    packed: SerializedCall, refs: Sequence[RemoteRef[Any]]
) -> tuple[SentFunction | None, list[tuple[int | str, Any]]]:
    fn: SerializedFunction | None = packed.function
    sent = None if fn is None else SentFunction(fn.key, fn.data, keys_of(fn.keeps))
    return sent, [(place, ref.key) for place, ref in zip(packed.places, refs, strict=True)]
