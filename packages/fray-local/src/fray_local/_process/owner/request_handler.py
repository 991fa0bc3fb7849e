"""The requests of workers to the process that owns everything: tasks, values, waiting, actors.

All of it arrives on the event loop's thread, so nothing here waits: a request whose answer is not there
yet leaves a watch, and the worker's slot goes to another task meanwhile. Whichever thread has the
answer gives it.
"""

import pickle
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from fray import WorkerDiedError, WrongProcessError
from fray.backend import (
    ERROR,
    VALUE,
    EngineRef,
    PackedCall,
    StoredError,
    dispatch,
    ready_positions,
    settle_error,
    settle_value,
    sources_of,
    thing_by_key,
)
from fray.job import ActorHandle
from fray_local._process.owner.calls import PackedError, blob_of
from fray_local._process.owner.interfaces import OwnerContext, Runner
from fray_local._process.owner.pending_requests import PendingRequest
from fray_local._process.protocol import values
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
from fray_local._process.protocol.serialization import SerializedCall, SerializedFunction
from fray_local._process.protocol.values import Blob, received

if TYPE_CHECKING:
    from fray_local._process.owner.worker_connection import WorkerConnection

Caller = tuple[int, int]
"""A worker's number and one of its threads, whose calls of an actor keep their order."""

_keys = count()  # of all contexts: `thing_by_key` has what each of them names


class RequestHandler:
    """Answers the workers of one context."""

    def __init__(self, context: OwnerContext, runner: Runner, owner: tuple[Any, ...]) -> None:
        self._context, self._runner, self.owner = context, runner, owner
        self._engine, self.budget, self.outputs = context.engine, runner.budget, runner.outputs
        self._told: dict[type, Callable[..., None]] = {
            Nothing: lambda *_: None,
            Lend: lambda caller, worker, _: worker.owner.lend(worker, caller),
            Reclaim: lambda caller, worker, _: worker.owner.reclaim(worker, caller),
            Withdraw: self._withdraw,
            Put: self._store,
            Promise: self._promise,
            Settle: self._settle,
            Run: self._run,
            CallActor: self._call_actor,
            CreateActor: self._make_actor,
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

    def is_ending(self) -> bool:
        """Whether the context takes nothing more from outside."""
        return self._engine.scope.closing

    def handle(self, worker: "WorkerConnection", message: Request, descriptors: deque[int]) -> None:
        """Handle the messages of a worker: perform its orders, answer its requests."""
        number, thread, deltas, operation, sent = message
        request = None if number is None else PendingRequest(worker, number)
        caller = worker.number, thread
        try:
            worker.apply_refcounts(deltas)
            blobs = [received(one, descriptors, worker.things(keys)) for one, keys in sent]
            if request is None:
                self._told[type(operation)](caller, worker, operation, *blobs)
            else:
                self._asked[type(operation)](caller, request, operation, *blobs)
        except Exception as error:
            if request is None:
                raise
            request.fail(error)

    def withdraw_all(self, worker: "WorkerConnection") -> None:
        """The worker is gone: nobody wants its answers."""
        for request in list(worker.pending_requests.values()):
            request.withdraw()

    def break_promises(self, worker: "WorkerConnection", how: str) -> None:
        """The worker is gone: nobody settles what it promised."""
        for key in worker.promised:
            ref = thing_by_key.get(key)
            if ref is not None:
                error = WorkerDiedError(f"the worker process {worker.pid} whose future this waited for {how}")
                dispatch(settle_error(ref, error))

    # Orders, which have no answer.

    def _withdraw(self, caller: Caller, worker: "WorkerConnection", message: Withdraw) -> None:
        request = worker.pending_requests.get(message.number)
        if request is not None:
            request.withdraw()

    def _store(self, caller: Caller, worker: "WorkerConnection", message: Put, blob: Blob) -> None:
        try:
            thing = self._kept(blob)
        except Exception as error:  # noqa: BLE001 - the worker sees it when it requests the value
            thing = self._engine.failed(error, streaming=False)
        worker.hold(message.key, thing)

    def _promise(self, caller: Caller, worker: "WorkerConnection", message: Promise) -> None:
        worker.hold(message.key, self._engine.promise())
        worker.promised.add(message.key)

    def _settle(self, caller: Caller, worker: "WorkerConnection", message: Settle, blob: Blob) -> None:
        worker.promised.discard(message.key)
        ref = thing_by_key.get(message.key)
        if ref is None:
            return
        if message.state != values.VALUE:
            dispatch(settle_error(ref, PackedError(blob.data, keeps=blob.keeps)))
            return
        try:
            ready = settle_value(ref, self._adopted(blob))
        except Exception as error:  # noqa: BLE001 - no room; what waits for it sees that
            ready = settle_error(ref, error)
        dispatch(ready)

    def _run(self, caller: Caller, worker: "WorkerConnection", message: Run, blob: Blob) -> None:
        _, function, places, label, options, streaming = message
        try:
            packed = self._packed(worker, function, places, blob)
            thing = self._runner.launch(packed, label, options, streaming=streaming, caller=caller)
        except Exception as error:  # noqa: BLE001 - the worker sees it when it requests the result
            thing = self._engine.failed(error, streaming=streaming)
        worker.hold(message.key, thing)

    def _call_actor(self, caller: Caller, worker: "WorkerConnection", message: CallActor, blob: Blob) -> None:
        key, actor_key, method, places = message
        actor = self._thing(worker, actor_key).actor
        try:
            packed = self._packed(worker, None, places, blob)
            thing = actor.call(method, packed, caller=caller)
            if actor.methods[method]:
                self._runner.close_when_dropped(thing)
        except Exception as error:  # noqa: BLE001 - the worker sees it when it requests the result
            thing = self._engine.failed(error, streaming=actor.methods[method])
        worker.hold(key, thing)

    def _make_actor(
        self, caller: Caller, worker: "WorkerConnection", message: CreateActor, blob: Blob
    ) -> None:
        """Make an actor that nobody can find by a name: no file is looked at, so it can be done here."""
        function, places, label, methods, options, asynchronous, key = message
        registry = self._runner.registry
        try:
            packed = self._packed(worker, function, places, blob)
            made = registry.make(label, methods, packed, options, asynchronous=asynchronous, caller=caller)
            endpoint: Any = made._endpoint
        except Exception as error:  # noqa: BLE001 - the worker sees it when it calls the actor
            endpoint = registry.failed(label, methods, error)
        worker.hold(key, endpoint)

    # Requests, which are answered.

    def _put(self, caller: Caller, request: PendingRequest, message: Put, blob: Blob) -> None:
        request.worker.hold(message.key, self._kept(blob))
        request.answer(None)

    def _kept(self, blob: Blob) -> EngineRef[Any]:
        return self._engine.put(self._adopted(blob))

    def _adopted(self, blob: Blob) -> Blob:
        """Return a value of a worker once there is room for it."""
        if blob.segment is not None:
            blob.segment = self.budget.adopt(blob.segment)
        return blob

    def _get(self, caller: Caller, request: PendingRequest, message: Get) -> None:
        refs = [self._thing(request.worker, key) for key in message.keys]

        def act() -> None:
            failed = next((ref for ref in refs if ref.state == ERROR), None)
            if failed is None:
                request.answer(True, [blob_of(ref, self.budget) for ref in refs])
            elif isinstance(failed.content, PackedError):
                request.fail(failed.content.data)
            else:  # it may run code of the user's to load it and to pack it
                self._runner.call_back(partial(_fail, request, failed.content))

        if all(ref.state == VALUE for ref in refs) or any(ref.state == ERROR for ref in refs):
            act()
        elif message.now:
            request.answer(False)
        else:
            request.wait_for(sources_of(refs), len(refs), act, stop_on_error=True)

    def _wait(self, caller: Caller, request: PendingRequest, message: Wait) -> None:
        refs = [self._thing(request.worker, key) for key in message.keys]
        if message.now:
            request.answer(ready_positions(refs, message.needed))
        else:
            self._answer_ready(request, refs, message.needed)

    def _answer_ready(self, request: PendingRequest, refs: list[Any], needed: int) -> None:
        ready = ready_positions(refs, needed)
        if len(ready) >= needed:
            request.answer(ready)
            return
        request.withdraw()
        sources = sources_of(refs)
        # One that stands in the list twice counts twice: fewer may be enough, and then this one looks again.
        fewest = needed - (len(refs) - len(sources))
        another = len({refs[index] for index in ready}) + 1
        again = partial(self._answer_ready, request, refs, needed)
        request.wait_for(sources, max(fewest, another), again)

    def _next(self, caller: Caller, request: PendingRequest, message: Next) -> None:
        call = self._thing(request.worker, message.key).call
        item = call.take()
        if item is not None:
            self._hand_item(request, item)
        elif call.ended:
            request.answer(None)
        else:
            call.ask()
            # Another reader may be first: then this one looks again.
            request.wait_for([call], 1, partial(self._next_again, caller, request, message))

    def _next_again(self, caller: Caller, request: PendingRequest, message: Next) -> None:
        request.withdraw()
        self._next(caller, request, message)

    def _hand_item(self, request: PendingRequest, item: EngineRef[Any]) -> None:
        key = "item", next(_keys)
        request.worker.hold(key, item)
        request.answer(key, [blob_of(item, self.budget)] if item.state == VALUE else [])

    def _cancel(self, caller: Caller, request: PendingRequest, message: CancelRef) -> None:
        request.answer(self._context.cancel(self._thing(request.worker, message.key)))

    def _create_actor(
        self, caller: Caller, request: PendingRequest, message: CreateActor, blob: Blob
    ) -> None:
        function, places, label, methods, options, asynchronous, _ = message
        packed = self._packed(request.worker, function, places, blob)
        make = self._runner.registry.make
        self._hand(
            request,
            lambda: make(label, methods, packed, options, asynchronous=asynchronous, caller=caller),
        )

    def _get_actor(self, caller: Caller, request: PendingRequest, message: GetActor) -> None:
        self._hand(request, lambda: self._context.get_actor(message.name))

    def _find_actor(self, caller: Caller, request: PendingRequest, message: FindActor) -> None:
        self._hand(request, lambda: ActorHandle(self._context.endpoint_at(message.address)))

    def _kill(self, caller: Caller, request: PendingRequest, message: Kill) -> None:
        actor = ActorHandle(self._thing(request.worker, message.key))
        self._in_background(request, lambda: self._context.kill(actor))

    def _hand(self, request: PendingRequest, get: Callable[[], ActorHandle]) -> None:
        """Answer with a handle."""

        def act() -> tuple[Key, bytes]:
            handle, key = get(), ("handle", next(_keys))
            request.worker.hold(key, handle._endpoint)  # until the worker has unpickled it
            return key, pickle.dumps(handle)

        self._in_background(request, act)

    def _in_background(self, request: PendingRequest, act: Callable[[], Any]) -> None:
        """Answer with what may take a while to get: files are looked at, sockets connected."""

        def run() -> None:
            try:
                request.answer(act())
            except BaseException as error:  # noqa: BLE001 - the one that asked sees it
                request.fail(error)

        self._runner.call_back(run)

    # Both.

    def _packed(
        self,
        worker: "WorkerConnection",
        sent: SentFunction | None,
        places: list[tuple[int | str, Key]],
        blob: Blob,
    ) -> PackedCall:
        function = None
        if sent is not None:
            function = self._runner.known_function(
                SerializedFunction(sent.key, sent.data, tuple(worker.things(sent.keeps)))
            )
        call = SerializedCall(function, self._adopted(blob), [place for place, _ in places])
        return PackedCall(call, [self._thing(worker, key) for _, key in places])

    def _thing(self, worker: "WorkerConnection", key: Key) -> Any:
        entry = worker.proxies.get(key)
        thing = entry[0] if entry is not None else thing_by_key.get(key)
        if thing is None:
            raise WrongProcessError("what a reference stands for was gone when the reference arrived here")
        return thing


def _fail(request: PendingRequest, stored: StoredError) -> None:
    """Answer with an exception that is not packed."""
    try:
        error = stored.load()
    except BaseException as failure:  # noqa: BLE001 - the one that asked sees it
        error = failure
    request.fail(error)
