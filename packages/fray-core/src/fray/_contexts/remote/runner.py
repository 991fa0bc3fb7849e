"""The task runner of a context over a remote engine: hands ready calls to the engine, and settles them."""

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fray._contexts.remote.actors import ActorCaller
from fray._contexts.remote.session import SessionContext
from fray._contexts.remote.slots import slots_of
from fray._contexts.remote.streams import open_stream
from fray._contexts.remote.values import SerializedError, StoredKey, pack_call, with_slots
from fray._contracts.remote_engine import CallFailed, Key
from fray._contracts.task_runner import PackedCall
from fray._engine.calls import dispatch, shutting_down
from fray._values.errors import WorkerDiedError


class TaskMessage(NamedTuple):
    """What `run_call` is given: one task."""

    session: bytes
    key: Key
    label: str
    data: bytes
    slots: Sequence[bytes | None]
    """Serialized values; None for each that the engine brings, in the order of the dependencies."""
    retries: int


class EngineRunner:
    """Runs the calls of one context on its engine."""

    interrupts = False

    def __init__(self) -> None:
        self.context: SessionContext

    def belong_to(self, context: Any) -> None:
        """Store the context."""
        self.context = context

    def pack(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PackedCall:
        """Pack a call at once, with slots for its references."""
        args, kwargs, refs = with_slots(args, kwargs, self.context)
        return PackedCall(pack_call(self.context, the_method if fn is None else fn, args, kwargs), refs)

    def start(self, calls: Sequence[Any]) -> None:
        """Hand tasks to the engine, and start streams on workers."""
        for call in calls:
            try:
                self._start(call)
            except Exception as error:  # noqa: BLE001 - this call cannot be run, others may
                dispatch(call.fail(error))

    def _start(self, call: Any) -> None:
        if call.unwanted:
            dispatch(call.cancel_unstarted(shutting_down(call)))
            return
        payload, refs = call.payload, call.refs
        if not call.claim():
            return
        if call.streaming:
            open_stream(self.context, call, payload, refs)
            return
        context = self.context
        slots, keys = slots_of(context, refs)
        hold = context.hold(context.key_of(call.ref))
        call.state = hold
        message = TaskMessage(
            context.session.packed, hold.key, call.label, payload.data, slots, call.options.max_retries or 0
        )
        context.submitted.add(call.ref)
        context.remote.submit(hold.key, pickle.dumps(message), keys, call.options)
        context.remote.when_done(hold.key, partial(context.post, partial(_done, context, call, hold)))

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Request more items from the worker of a stream."""
        if call.state is not None:
            call.state.pump(call)

    def interrupt(self, call: Any) -> None:
        """Never called: a call of the engine is not interrupted."""

    def new_actor(self, actor: Any) -> ActorCaller:
        """Return what sends an actor's calls to where it lives."""
        return ActorCaller(self.context, actor)

    def call_back(self, fn: Callable[[], object]) -> None:
        """Call it on a thread that serves callbacks alone."""
        self.context.callbacks.run(fn)

    def close(self, *, wait: bool) -> None:
        """End the session; with `wait`, block until it has ended everywhere."""
        self.context.end_session(wait=wait)

    def abort(self) -> None:
        """End the session without waiting for what runs."""
        self.context.end_session(wait=False)

    def disown(self) -> bool:
        """Return that a forked child cannot use the connection."""
        return False


def _done(context: SessionContext, call: Any, hold: StoredKey, error: BaseException | None) -> None:
    if error is None:
        dispatch(call.succeed(hold))
        return
    call.state = None
    context.keep(call.ref, hold)
    if isinstance(error, CallFailed):
        dispatch(call.fail(SerializedError(error)))
    else:
        dispatch(call.lost(WorkerDiedError(f"{call.label} was given up by the engine: {error!r}")))


def the_method(*args: Any, **kwargs: Any) -> None:
    """Stands in for an actor's method, whose arguments are pickled without it."""


the_method.__qualname__ = "the method"
