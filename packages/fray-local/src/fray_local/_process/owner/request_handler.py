"""What workers ask of the process that owns everything: tasks, values, waiting, actors.

All of it arrives on the loop's thread, so nothing here waits: a request whose answer is not there yet
leaves a watcher, and the worker's place goes to another task meanwhile. Whichever thread has the
answer gives it.
"""

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from fray import WrongProcessError
from fray._engine.pool import set_current_task
from fray._engine.refs import (
    ERROR,
    VALUE,
    LocalRef,
    _by_id,
    failure,
    outcome,
    settle,
    value_ref,
)
from fray._engine.scope import Scope
from fray._engine.streams import LocalStream
from fray._engine.waiting import ready_positions
from fray.job import ActorHandle
from fray_local._process.owner.calls import error_of
from fray_local._process.owner.pending_requests import PendingRequest, Waiter
from fray_local._process.protocol.messages import (
    CallActor,
    CancelRef,
    CreateActor,
    FindActor,
    Get,
    GetActor,
    Key,
    Kill,
    Lend,
    Next,
    Nothing,
    Promise,
    Put,
    Reclaim,
    Request,
    Run,
    SentFunction,
    Settle,
    Wait,
    Withdraw,
)
from fray_local._process.protocol.serialization import SerializedCall, SerializedFunction, pack
from fray_local._process.protocol.values import Blob, received

if TYPE_CHECKING:
    from fray_local._process.context import ProcessContext
    from fray_local._process.owner.worker_connection import WorkerConnection


@dataclass(frozen=True)
class Caller:
    """One thread of a worker: its calls of an actor keep their order."""

    worker: int
    thread: int
    scope: Scope


class RequestHandler:
    """Answers the workers of one context."""

    def __init__(self, context: "ProcessContext", owner: tuple[Any, ...]) -> None:
        self._context, self.owner, self.budget = context, owner, context.budget
        self._keys = count()
        self._told: dict[type, Callable[..., None]] = {
            Nothing: lambda *_: None,
            Lend: lambda worker, _: worker.owner.lend(worker),
            Reclaim: lambda worker, _: worker.owner.reclaim(worker),
            Withdraw: self._withdraw,
            Put: lambda worker, message, blob: worker.hold(message.key, value_ref(blob)),
            Promise: lambda worker, message: worker.hold(message.key, LocalRef()),
            Settle: self._settle,
            Run: self._run,
            CallActor: self._call_actor,
        }
        self._asked: dict[type, Callable[..., None]] = {
            Put: self._put,
            Get: self._get,
            Wait: self._wait,
            Next: self._next,
            CancelRef: self._cancel,
            CreateActor: self._create_actor,
            GetActor: self._get_actor,
            FindActor: self._find_actor,
            Kill: self._kill,
        }

    def handle(self, worker: "WorkerConnection", message: Request, descriptors: deque[int]) -> None:
        """Do what a worker tells, answer what it asks."""
        number, lends, thread, deltas, operation, values = message
        request = None if number is None else PendingRequest(worker, number, lends)
        before = set_current_task(Caller(worker.number, thread, self._context._scope))
        try:
            worker.apply_refcounts(deltas)
            blobs = [received(one, descriptors, worker.things(keys)) for one, keys in values]
            if request is None:
                self._told[type(operation)](worker, operation, *blobs)
            else:
                self._asked[type(operation)](request, operation, *blobs)
        except Exception as error:
            if request is None:
                raise
            request.fail(error)
        finally:
            set_current_task(before)

    def withdraw_all(self, worker: "WorkerConnection") -> None:
        """The worker is gone: nobody wants its answers."""
        for request in list(worker.pending_requests.values()):
            request.withdraw()

    # Told.

    def _withdraw(self, worker: "WorkerConnection", message: Withdraw) -> None:
        request = worker.pending_requests.get(message.number)
        if request is not None:
            request.withdraw()

    def _settle(self, worker: "WorkerConnection", message: Settle, blob: Blob) -> None:
        ref = _by_id.get(message.key)
        if ref is not None:
            state = message.state
            settle(ref, state, blob if state == VALUE else failure(error_of(blob)))

    def _run(self, worker: "WorkerConnection", message: Run, blob: Blob) -> None:
        try:
            packed = self._packed(worker, message.function, message.places, blob)
            thing = self._context.launch(packed, message.label, message.options, streaming=message.streaming)
        except Exception as error:  # noqa: BLE001 - the worker sees it when it asks for the result
            thing = self._context.failed(error, message.streaming)
        worker.hold(message.key, thing)

    def _call_actor(self, worker: "WorkerConnection", message: CallActor, blob: Blob) -> None:
        endpoint = self._thing(worker, message.actor)
        try:
            packed = self._packed(worker, None, message.places, blob)
            thing = endpoint.call_packed(message.method, packed)
        except Exception as error:  # noqa: BLE001 - the worker sees it when it asks for the result
            thing = self._context.failed(error, endpoint.streams(message.method))
        worker.hold(message.key, thing)

    # Asked.

    def _put(self, request: PendingRequest, message: Put, blob: Blob) -> None:
        if blob.segment is not None:
            blob.segment = self._context.budget.adopt(blob.segment)
        request.worker.hold(message.key, value_ref(blob))
        request.answer(None)

    def _get(self, request: PendingRequest, message: Get) -> None:
        refs = [self._thing(request.worker, key) for key in message.keys]

        def act() -> None:
            failed = next((ref for ref in refs if ref._state == ERROR), None)
            if failed is not None:
                request.fail(failed._value[0])
            else:
                request.answer(None, [self._blob_of(ref) for ref in refs])

        if all(ref._state == VALUE for ref in refs) or any(ref._state == ERROR for ref in refs):
            act()
        else:
            request.wait_for(Waiter(len(refs), act, stop_on_error=True), refs)

    def _wait(self, request: PendingRequest, message: Wait) -> None:
        refs, needed = [self._thing(request.worker, key) for key in message.keys], message.needed
        ready = ready_positions(refs, needed)
        if len(ready) >= needed or message.now:
            request.answer(ready)
            return
        sources = list(dict.fromkeys(_source(ref) for ref in refs))
        for ref in refs:
            if isinstance(ref, LocalStream):
                ref._producer.resume()

        def act() -> None:
            # One that stands in the list twice counts twice, so there may be more than was waited for.
            request.answer(ready_positions(refs, needed))

        enough = max(1, needed - (len(refs) - len(sources)))
        request.wait_for(Waiter(enough, act), sources)

    def _next(self, request: PendingRequest, message: Next) -> None:
        stream: LocalStream[Any] = self._thing(request.worker, message.key)
        producer = stream._producer

        def act() -> None:
            item = producer.take()
            if item is not None:
                producer.resume()
                self._hand_item(request, item)
            elif producer._finished:
                request.answer(None)
            else:  # another reader was first
                request.withdraw()
                self._next(request, message)

        producer.resume()
        if producer._state:
            act()
        else:
            request.wait_for(Waiter(1, act), [producer])

    def _hand_item(self, request: PendingRequest, item: LocalRef[Any]) -> None:
        key = "item", next(self._keys)
        request.worker.hold(key, item)
        request.answer(key, [self._blob_of(item)] if item._state == VALUE else [])

    def _cancel(self, request: PendingRequest, message: CancelRef) -> None:
        request.answer(self._context.cancel(self._thing(request.worker, message.key)))

    def _create_actor(self, request: PendingRequest, message: CreateActor, blob: Blob) -> None:
        packed = self._packed(request.worker, message.function, message.places, blob)
        _, _, label, methods, options = message
        self._context.in_background(
            lambda: self._context.registry.make(label, methods, packed, options), self._handing(request)
        )

    def _get_actor(self, request: PendingRequest, message: GetActor) -> None:
        self._context.in_background(lambda: self._context.get_actor(message.name), self._handing(request))

    def _find_actor(self, request: PendingRequest, message: FindActor) -> None:
        def find() -> ActorHandle:
            return ActorHandle(self._context.endpoint_at(message.address))

        self._context.in_background(find, self._handing(request))

    def _handing(self, request: PendingRequest) -> Callable[[ActorHandle | None, BaseException | None], None]:
        def hand(handle: ActorHandle | None, error: BaseException | None) -> None:
            if error is not None:
                request.fail(error)
                return
            assert handle is not None
            key = "handle", next(self._keys)
            request.worker.hold(key, handle._endpoint)  # until the worker has unpickled it
            request.answer((key, pickle.dumps(handle)))

        return hand

    def _kill(self, request: PendingRequest, message: Kill) -> None:
        self._context.kill(ActorHandle(self._thing(request.worker, message.key)))
        request.answer(None)

    # Both.

    def _packed(
        self,
        worker: "WorkerConnection",
        sent: SentFunction | None,
        places: list[tuple[int | str, Key]],
        blob: Blob,
    ) -> SerializedCall:
        function = None
        if sent is not None:
            function = self._context.known_function(
                SerializedFunction(sent.key, sent.data, tuple(worker.things(sent.keeps)))
            )
        if blob.segment is not None:
            blob.segment = self._context.budget.adopt(blob.segment)
        return SerializedCall(function, blob, [(place, self._thing(worker, key)) for place, key in places])

    def _thing(self, worker: "WorkerConnection", key: Key) -> Any:
        entry = worker.proxies.get(key)
        thing = entry[0] if entry is not None else _by_id.get(key)
        if thing is None:
            raise WrongProcessError("what a reference stands for was gone when the reference arrived here")
        return thing

    def _blob_of(self, ref: LocalRef[Any]) -> Blob:
        value = ref._value
        return value if type(value) is Blob else pack(outcome(ref), "a value", self._context.budget)


def _source(ref: Any) -> Any:
    return ref._producer if isinstance(ref, LocalStream) else ref
