"""The consuming side of a stream whose generator runs on a worker.

The worker's answer to `next` comes when at least one item is there; only one such request is under way.
"""

import pickle
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import finalize

from fray._contexts.remote.session import SessionContext
from fray._contexts.remote.slots import slots_of
from fray._contexts.remote.values import SerializedBytes, SerializedError, SerializedValue, StoredKey
from fray._contracts.remote_engine import CallFailed
from fray._engine.calls import dispatch
from fray._values.errors import TaskCancelledError, WorkerDiedError


def open_stream(context: SessionContext, call: Any, payload: SerializedBytes, refs: Sequence[Any]) -> None:
    """Start a generator task on a worker; it may wait for one, and so has a thread of its own."""
    context.callbacks.run(partial(_open, context, call, payload, refs))


def _open(context: SessionContext, call: Any, payload: SerializedBytes, refs: Sequence[Any]) -> None:
    try:
        _ask_to_open(context, call, payload, refs)
    except Exception as error:  # noqa: BLE001 - it is this call's failure
        dispatch(call.fail(error))


def _ask_to_open(context: SessionContext, call: Any, payload: SerializedBytes, refs: Sequence[Any]) -> None:
    worker = context.choose_worker()
    slots, keys = slots_of(context, refs)
    held = [ref.content for ref in refs if isinstance(ref.content, StoredKey)]
    stream = f"{context.session.name}-{uuid4().hex}"
    opening = context.ask(worker, "open_stream", stream, call.label, payload.data, slots, keys)
    opening.add_done_callback(partial(context.post, partial(_opened, context, call, worker, stream, held)))


def _opened(
    context: SessionContext, call: Any, worker: str, stream: str, held: Any, opening: "Future[bytes]"
) -> None:
    del held  # values that the worker has by now
    error = opening.exception()
    if error is not None:
        dispatch(call.fail(_lost(call, worker, error)))
        return
    failure = pickle.loads(opening.result())
    if isinstance(failure, CallFailed):
        dispatch(call.fail(SerializedError(failure)))
        return
    call.state = RemoteStream(context, call, worker, stream)
    call.state.pump(call)


def _lost(call: Any, worker: str, error: BaseException) -> WorkerDiedError:
    return WorkerDiedError(f"worker {worker} ended while it ran {call.label}: {error!r}")


class RemoteStream:
    """One stream that runs on a worker; its call holds this, and this does not hold its call."""

    def __init__(self, context: SessionContext, call: Any, worker: str, name: str) -> None:
        self._context, self._worker, self._name = context, worker, name
        self._asking = self._closing = False
        finalize(call, context.tell, worker, "close_stream", name).atexit = False

    def pump(self, call: Any) -> None:
        """Request as many items as may be pushed, or close what nobody wants; it never blocks."""
        self._context.post(self._pump, call)

    def _pump(self, call: Any) -> None:
        if call.over:
            return
        if call.cancelled or call.unwanted:
            if not self._closing:
                self._closing = True
                self._context.tell(self._worker, "close_stream", self._name)
                dispatch(call.fail(TaskCancelledError(f"{call.label} was cancelled")))
            return
        if self._asking or call.credits <= 0:
            return
        self._asking = True
        answer = self._context.ask(self._worker, "next_items", self._name, call.credits)
        answer.add_done_callback(partial(self._context.post, partial(self._arrived, call)))

    def _arrived(self, call: Any, answer: "Future[bytes]") -> None:
        self._asking = False
        error = answer.exception()
        if error is not None:
            dispatch(call.fail(_lost(call, self._worker, error)))
            return
        items, ended, failure = pickle.loads(answer.result())
        if items:
            call.push([SerializedValue(self._context, SerializedBytes(item, ())) for item in items])
        if isinstance(failure, CallFailed):
            dispatch(call.fail(SerializedError(failure)))
        elif ended:
            dispatch(call.succeed())
        else:
            self._pump(call)
