"""What workers ask of the process that owns everything: tasks, values, waiting, actors.

All of it arrives on the loop's thread, so nothing here waits: a request whose answer is not there yet
leaves a watcher, and the worker's place goes to another task meanwhile. Whichever thread has the
answer gives it.
"""

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
from fray.job import ActorHandle, ActorOptions, TaskOptions
from fray_local._process.owner.pending_requests import PendingRequest, Waiter
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

    def handle(
        self, worker: "WorkerConnection", kind: str, message: list[Any], descriptors: deque[int]
    ) -> None:
        """Do what a worker tells, answer what it asks."""
        request = PendingRequest(worker, *message[:2]) if kind == "ask" else None
        thread, refcount_deltas, what, details, described = message[-5:]
        before = set_current_task(Caller(worker.number, thread, self._context._scope))
        try:
            worker.apply_refcounts(refcount_deltas)
            blobs = [received(one, descriptors, worker.things(keys)) for one, keys in described]
            act = getattr(self, f"_{kind}_{what}")
            act(request or worker, *details, *blobs)
        except Exception as error:
            if request is None:
                raise
            request.fail(error)
        finally:
            set_current_task(before)

    def forget_all(self, worker: "WorkerConnection") -> None:
        """The worker is gone: nobody wants its answers."""
        for request in list(worker.waiting.values()):
            request.forget()

    # Told.

    def _tell_nothing(self, worker: "WorkerConnection") -> None:
        """Only the refcount_deltas was worth a message."""

    def _tell_lend(self, worker: "WorkerConnection") -> None:
        worker.owner.lend(worker)

    def _tell_reclaim(self, worker: "WorkerConnection") -> None:
        worker.owner.reclaim(worker)

    def _tell_forget(self, worker: "WorkerConnection", number: int) -> None:
        request = worker.waiting.get(number)
        if request is not None:
            request.forget()

    def _tell_put(self, worker: "WorkerConnection", key: Any, blob: Blob) -> None:
        worker.name(key, value_ref(blob))

    def _tell_promise(self, worker: "WorkerConnection", key: Any) -> None:
        worker.name(key, LocalRef())

    def _tell_settle(self, worker: "WorkerConnection", key: Any, state: int, blob: Blob) -> None:
        from fray_local._process.owner.calls import error_of

        ref = _by_id.get(key)
        if ref is not None:
            settle(ref, state, blob if state == VALUE else failure(error_of(blob)))

    def _tell_run(
        self,
        worker: "WorkerConnection",
        key: Any,
        streaming: bool,
        title: str,
        options: TaskOptions,
        shipped: Any,
        places: list[tuple[Any, Any]],
        blob: Blob,
    ) -> None:
        try:
            packed = self._packed(worker, shipped, places, blob)
            thing = self._context.launch(packed, title, options, streaming=streaming)
        except Exception as error:  # noqa: BLE001 - the worker sees it when it asks for the result
            thing = self._context.failed(error, streaming)
        worker.name(key, thing)

    def _tell_call(
        self,
        worker: "WorkerConnection",
        key: Any,
        endpoint_key: Any,
        method: str,
        shipped: Any,
        places: list[tuple[Any, Any]],
        blob: Blob,
    ) -> None:
        endpoint = self._thing(worker, endpoint_key)
        try:
            thing = endpoint.call_packed(method, self._packed(worker, shipped, places, blob))
        except Exception as error:  # noqa: BLE001 - the worker sees it when it asks for the result
            thing = self._context.failed(error, endpoint.streams(method))
        worker.name(key, thing)

    # Asked.

    def _ask_put(self, request: PendingRequest, key: Any, blob: Blob) -> None:
        if blob.segment is not None:
            blob.segment = self._context.budget.adopt(blob.segment)
        request.worker.name(key, value_ref(blob))
        request.answer(None)

    def _ask_get(self, request: PendingRequest, keys: list[Any]) -> None:
        refs = [self._thing(request.worker, key) for key in keys]

        def act() -> None:
            failed = next((ref for ref in refs if ref._state == ERROR), None)
            if failed is not None:
                request.fail(failed._value[0])
            else:
                request.answer(lambda shipped: shipped, blobs=[self._blob_of(ref) for ref in refs])

        if all(ref._state == VALUE for ref in refs) or any(ref._state == ERROR for ref in refs):
            act()
        else:
            request.wait_for(Waiter(len(refs), act, stop_on_error=True), refs)

    def _ask_wait(self, request: PendingRequest, keys: list[Any], needed: int, now: bool) -> None:
        refs = [self._thing(request.worker, key) for key in keys]
        ready = ready_positions(refs, needed)
        if len(ready) >= needed or now:
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

    def _ask_next(self, request: PendingRequest, key: Any) -> None:
        stream: LocalStream[Any] = self._thing(request.worker, key)
        producer = stream._producer

        def act() -> None:
            item = producer.take()
            if item is not None:
                producer.resume()
                self._hand_item(request, item)
            elif producer._finished:
                request.answer(None)
            else:  # another reader was first
                request.forget()
                self._ask_next(request, key)

        producer.resume()
        if producer._state:
            act()
        else:
            request.wait_for(Waiter(1, act), [producer])

    def _hand_item(self, request: PendingRequest, item: LocalRef[Any]) -> None:
        key = request.worker.number, "item", id(item)
        request.worker.name(key, item)
        if item._state == VALUE:
            request.answer(lambda shipped: (key, VALUE, shipped[0]), blobs=[self._blob_of(item)])
        else:
            request.answer((key, ERROR, None))

    def _ask_cancel(self, request: PendingRequest, key: Any) -> None:
        request.answer(self._context.cancel(self._thing(request.worker, key)))

    def _ask_actor(
        self,
        request: PendingRequest,
        title: str,
        methods: dict[str, bool],
        options: ActorOptions,
        shipped: Any,
        places: list[tuple[Any, Any]],
        blob: Blob,
    ) -> None:
        packed = self._packed(request.worker, shipped, places, blob)
        self._context.in_background(
            lambda: self._context.registry.make(title, methods, packed, options), self._handing(request)
        )

    def _ask_get_actor(self, request: PendingRequest, name: str) -> None:
        self._context.in_background(lambda: self._context.get_actor(name), self._handing(request))

    def _ask_actor_at(self, request: PendingRequest, address: tuple[str, str, str]) -> None:
        def find() -> ActorHandle:
            return ActorHandle(self._context.endpoint_at(address))

        self._context.in_background(find, self._handing(request))

    def _handing(self, request: PendingRequest) -> Callable[[ActorHandle | None, BaseException | None], None]:
        def hand(handle: ActorHandle | None, error: BaseException | None) -> None:
            if error is not None:
                request.fail(error)
                return
            assert handle is not None
            key = request.worker.number, "handle", id(handle)
            request.worker.name(key, handle._endpoint)  # until the worker has unpickled it
            request.answer((key, pickle.dumps(handle)))

        return hand

    def _ask_kill(self, request: PendingRequest, key: Any) -> None:
        self._context.kill(ActorHandle(self._thing(request.worker, key)))
        request.answer(None)

    # Both.

    def _packed(
        self, worker: "WorkerConnection", shipped: Any, places: list[tuple[Any, Any]], blob: Blob
    ) -> SerializedCall:
        function = None
        if shipped is not None:
            key, data, keeps = shipped
            function = self._context.known_function(
                SerializedFunction(key, data, tuple(worker.things(keeps)))
            )
        if blob.segment is not None:
            blob.segment = self._context.budget.adopt(blob.segment)
        return SerializedCall(function, blob, [(place, self._thing(worker, key)) for place, key in places])

    def _thing(self, worker: "WorkerConnection", key: Any) -> Any:
        entry = worker.names.get(key)
        thing = entry[0] if entry is not None else _by_id.get(key)
        if thing is None:
            raise WrongProcessError("what a reference stands for was gone when the reference arrived here")
        return thing

    def _blob_of(self, ref: LocalRef[Any]) -> Blob:
        value = ref._value
        return value if type(value) is Blob else pack(outcome(ref), "a value", self._context.budget)


def _source(ref: Any) -> Any:
    return ref._producer if isinstance(ref, LocalStream) else ref
