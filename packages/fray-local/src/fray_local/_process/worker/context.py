"""The context inside a worker: it holds names; what they name lives in the caller's process."""

import contextlib
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

from fray import GetTimeoutError, UnsupportedError, WrongProcessError
from fray.backend import (
    callable_name,
    find_by_identity,
    is_async_class,
    is_generator_function,
    pack_exception,
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
    Deltas,
    FindActor,
    Get,
    GetActor,
    Kill,
    Lend,
    Message,
    Nothing,
    Operation,
    Promise,
    Put,
    Reclaim,
    Reply,
    Request,
    Run,
    SentFunction,
    Settle,
    Wait,
    Withdraw,
)
from fray_local._process.protocol.serialization import (
    SerializedCall,
    SerializedFunction,
    pack,
    serialize_call,
)
from fray_local._process.protocol.values import ERROR, VALUE, Blob, Budget, Segment, received
from fray_local._process.worker.outbox import Outbox
from fray_local._process.worker.proxies import Owner, Proxy, RemoteEndpoint, RemoteRef, RemoteStream

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

_MOST_UNASKED = 1 << 20
"""Bytes from which on `put` asks for room and waits; below, the wait would be most of its time."""
_COPIES = "a copy of the context inside a worker cannot be closed there; leave that to its owner"


class WorkerContext(ContextBase):
    """`get_job_context()` inside a task of a `ProcessContext`."""

    capabilities = CAPABILITIES

    def __init__(self, number: int, owner: Owner, outbox: Outbox) -> None:
        self.owner, self._outbox = owner, outbox
        self.refcounts: deque[tuple[Any, int]] = (
            deque()
        )  # to tell the owner: a key is held once more, or less
        self.budget = Budget()
        self._order, self._taking = threading.RLock(), False
        self._callbacks = CallbackThreads()
        self._number, self._ids, self._requests = number, count(), count()
        self._waiting: dict[int, Callable[[Blob | None, Any, list[Blob]], None]] = {}
        set_foreign_finder(self._resolve)

    def put_with_deltas(
        self, message: Callable[[Deltas], Message], descriptors: Sequence[int], keep: Any
    ) -> None:
        """Give a message to the owner its place in the order, with what the owner has to know of keys.

        Another thread waits, and a finalizer that interrupts this one sends none of that: else "held once
        less" could overtake "held once more", and the owner would let go of what is in use.
        """
        with self._order:
            nested, self._taking = self._taking, True
            try:
                self._outbox.put(message(() if nested else self._take_deltas()), descriptors, keep)
            finally:
                self._taking = nested

    def _take_deltas(self) -> Deltas:
        return tuple(self.refcounts.popleft() for _ in range(len(self.refcounts)))

    def answered(self, reply: Reply, descriptors: deque[int], kept: dict[int, Segment]) -> None:
        """Hand the owner's answer to the thread that asked."""
        hand = self._waiting.pop(reply.number, None)
        error = None if reply.error is None else Blob(reply.error)
        values: list[Blob] = []
        try:  # in any case: the descriptors have to go somewhere
            values = [received(one, descriptors, kept=kept) for one in reply.values]
        except Exception as failure:  # noqa: BLE001 - the one that asked sees it
            error = Blob(pack_exception(failure))
        if hand is not None:
            hand(error, reply.answer, values)

    def ask(
        self, operation: Operation, *, timeout: float | None = None, blobs: Sequence[Blob] = ()
    ) -> tuple[Any, list[Blob]]:
        """Ask the owner and block until the answer is there, with the values that come with it.

        Raises:
            GetTimeoutError: It was not there in time.
        """
        if self.inside_a_message():
            raise RuntimeError(
                "this would wait for ever: a finalizer or a signal handler interrupted a message to the "
                "process that has the answer; use the context from a task or a thread"
            )
        gate = threading.Lock()
        gate.acquire()
        answers: list[tuple[Blob | None, Any, list[Blob]]] = []

        def hand(error: Blob | None, answer: Any, values: list[Blob]) -> None:
            answers.append((error, answer, values))
            gate.release()

        number = self._ask(operation, blobs, hand)
        try:
            limit = seconds(timeout)
            gate.acquire(timeout=-1 if limit is None else limit)
        finally:
            if self._waiting.pop(number, None) is not None:
                self.tell(Withdraw(number))
        if not answers:
            raise GetTimeoutError(f"no result within {timeout} s; the tasks go on")
        error, answer, values = answers[0]
        if error is not None:
            raise unpack_exception(error.data)
        return answer, values

    def inside_a_message(self) -> bool:
        """Whether a finalizer or a signal handler has interrupted this thread while it sends something."""
        inside: bool = self._order._is_owned()  # type: ignore[attr-defined]
        return inside or threading.get_ident() in self._outbox.threads_inside

    def _ask(
        self,
        operation: Operation,
        blobs: Sequence[Blob],
        hand: Callable[[Blob | None, Any, list[Blob]], None],
    ) -> int:
        number = next(self._requests)
        self._waiting[number] = hand
        self._request(number, operation, blobs)
        return number

    def tell(self, operation: Operation, *, blobs: Sequence[Blob] = ()) -> None:
        """Tell the owner something that has no answer."""
        self._request(None, operation, blobs)

    def _request(self, number: int | None, operation: Operation, blobs: Sequence[Blob]) -> None:
        descriptors: list[int] = []
        values = [(blob.describe(descriptors), _keys(blob.keeps)) for blob in blobs]
        thread = threading.get_ident()
        self.put_with_deltas(
            lambda deltas: Request(number, thread, deltas, operation, values), descriptors, blobs
        )
        if number is None and not descriptors:
            self._outbox.flush_soon()
        else:
            self._outbox.flush()

    @contextlib.contextmanager
    def _lending(self) -> Iterator[None]:
        """Free the worker's place while its task waits in an event loop for what other threads ask for."""
        self.tell(Lend())
        try:
            yield
        finally:
            self.tell(Reclaim())

    def flush(self) -> None:
        """Tell the owner what became of names while there was nothing else to tell."""
        if self.refcounts:
            self.tell(Nothing())

    def _new_key(self) -> Any:
        return self._number, next(self._ids)

    def put(self, obj: T, /) -> RemoteRef[T]:
        """Store a value with the owner.

        Raises:
            ObjectStoreFullError: There is no room; for less than a mebibyte, `get` raises it instead.
        """
        blob = pack(obj, "the object given to put()", self.budget)
        key = self._new_key()
        if blob.segment is None or blob.segment.size < _MOST_UNASKED:
            self.tell(Put(key), blobs=[blob])
        else:
            self.ask(Put(key), blobs=[blob])  # there may be no room
        return RemoteRef(self, key)

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
        _, values = self.ask(Get(missing), timeout=timeout)
        arrived = dict(zip(missing, values, strict=True))
        return [arrived.get(ref.key) or cast("Blob", ref.blob) for ref in refs]

    def wait(
        self, refs: Sequence[R], /, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[R], list[R]]:
        """Return the first `num_returns` ready ones and the others; see `JobContext.wait`."""
        refs = list(refs)
        if num_returns < 1:
            raise ValueError(f"num_returns must be 1 or more, got {num_returns!r}")
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
        future: Future[Any] = Future()
        if type(ref) is not RemoteRef:
            future.set_result(ref)
            return future

        def hand(error: Blob | None, _: Any, values: list[Blob]) -> None:
            # Unpickling, and what waits for the future, may use the context: not in the listener's thread.
            self._callbacks.do(partial(settle_future, future, lambda: _outcome(error, values)))

        if ref.blob is not None:
            settle_future(future, ref.blob.load)
        else:
            self._ask(Get([ref.key]), (), hand)
        return future

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not callable(fn):
            raise ValueError(f"a task needs a function, got {fn!r}")
        packed, refs = self._pack(fn, args, kwargs)
        streaming = is_generator_function(fn)
        key = self._new_key()
        function, places = _call_details(packed, refs)
        label = options.name or callable_name(fn)
        self.tell(Run(key, function, places, label, options, streaming), blobs=[packed.blob])
        return RemoteStream(self, key) if streaming else RemoteRef(self, key)

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
        key = self._new_key()
        _, places = _call_details(packed, refs)
        self.tell(CallActor(key, endpoint.key, method, places), blobs=[packed.blob])
        return RemoteStream(self, key) if streaming else RemoteRef(self, key)

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
        key = self._new_key()
        self.tell(Promise(key))

        def settle(done: "Future[Any]") -> None:
            try:
                state, blob = VALUE, pack(done.result(), "the result of a future", self.budget)
            except BaseException as error:  # noqa: BLE001 - whatever it raised is what the task gets
                state, blob = ERROR, Blob(pack_exception(error))
            self.tell(Settle(key, state), blobs=[blob])

        future.add_done_callback(settle)
        return RemoteRef(self, key)

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        packed, refs = self._pack(cls, args, kwargs)
        function, places = _call_details(packed, refs)
        # A name may be taken, which has to be asked; another actor can be had without an answer.
        alone = options.name is None and options.lifetime is not Lifetime.DETACHED
        key = self._new_key() if alone and self.inside_a_message() else None
        label = callable_name(cls)
        request = CreateActor(function, places, label, methods, options, is_async_class(cls), key)
        if key is None:
            return self._handed(*self.ask(request, blobs=[packed.blob]))
        self.tell(request, blobs=[packed.blob])
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


def _outcome(error: Blob | None, values: list[Blob]) -> Any:
    if error is not None:
        raise unpack_exception(error.data)
    return values[0].load()


def _call_details(
    packed: SerializedCall, refs: Sequence[RemoteRef[Any]]
) -> tuple[SentFunction | None, list[tuple[int | str, Any]]]:
    fn: SerializedFunction | None = packed.function
    sent = None if fn is None else SentFunction(fn.key, fn.data, _keys(fn.keeps))
    return sent, [(place, ref.key) for place, ref in zip(packed.places, refs, strict=True)]


def _keys(kept: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(one.key for one in kept if isinstance(one, Proxy))
