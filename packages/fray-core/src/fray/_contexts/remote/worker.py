"""What an engine calls in its workers: `run_call` for a task, `answer` for a request."""

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import copy_context
from types import CoroutineType
from typing import Any

from fray._contexts.remote.hosts import context_of, end_session, has_session, host_of
from fray._contexts.remote.runner import TaskMessage
from fray._contexts.remote.session import SessionContext
from fray._contexts.remote.values import failed_with, filled, pack, unpack
from fray._contracts.current_context import current_context_var
from fray._contracts.remote_engine import CallFailed
from fray._engine.calls import set_current_call
from fray._engine.execution import run_coroutine, strip_frames
from fray._engine.waiting import set_lender
from fray._values.errors import TaskCancelledError, WorkerDiedError


class _RunningTask:
    """Stands for the task that a thread runs, as the caller of an actor for example."""

    scope = None


class _EngineLender:
    """Frees the engine's place of a task while it waits."""

    def __init__(self, remote: Any) -> None:
        self._remote, self._lent = remote, 0

    def lend(self, timeout: float | None, sources: Sequence[Any]) -> None:
        """Free it, unless the wait is none."""
        self._lent += 1
        if self._lent == 1:
            self._remote.lend()

    def reclaim(self) -> None:
        """Take it again."""
        self._lent -= 1
        if not self._lent:
            self._remote.reclaim()


def run_call(call: bytes, values: Sequence[bytes]) -> bytes:
    """Run one task; an engine calls this in a worker, on any thread, for each `submit`.

    Returns:
        What is to be stored as the value of the call's key.

    Raises:
        CallFailed: The call failed; its key fails with this.
    """
    message: TaskMessage = pickle.loads(call)
    try:
        context = context_of(message.session)
        _check_claim(context, message)
        return _run(context, message, list(values))
    except CallFailed:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it raised is the task's failure
        failure = failed_with(strip_frames(error, __file__))
    raise failure  # out here it has no context: an engine pickles that too, and the user's may not travel


def _check_claim(context: SessionContext, message: TaskMessage) -> None:
    """Let the call run as often as it may: what ran before left its name at the key."""
    if not hasattr(context.remote, "claim"):
        return
    earlier = context.remote.claim(message.key, f"process {context.holder}")
    if len(earlier) <= message.retries and "cancelled" not in earlier:
        return
    if "cancelled" in earlier:
        raise TaskCancelledError(f"{message.label} was cancelled before it started")
    raise WorkerDiedError(
        f"{earlier[-1]} ended while it ran {message.label}, or the result was lost with it; it ran "
        f"{len(earlier)} times, and max_retries={message.retries}"
    )


def _run(context: SessionContext, message: TaskMessage, values: list[bytes]) -> bytes:
    brought = iter(values)
    arguments = [unpack(context, next(brought) if slot is None else slot) for slot in message.slots]
    before = set_current_call(_RunningTask())
    lender = set_lender(_EngineLender(context.remote) if hasattr(context.remote, "lend") else None)
    try:
        fn, args, kwargs = unpack(context, message.data)
        args, kwargs = filled(args, kwargs, arguments)
        variables = copy_context()
        variables.run(current_context_var.set, context)
        value = variables.run(fn, *args, **kwargs)
        if type(value) is CoroutineType:
            value = run_coroutine(value, variables)
        packed = pack(context, value, f"the result of {message.label}")
    finally:
        set_lender(lender)
        set_current_call(before)
    del fn, args, kwargs, arguments, value
    if packed.kept:
        context.kept[message.key] = list(packed.kept)
    context.await_arrivals()
    return packed.data


def answer(request: bytes) -> "Future[bytes]":
    """Answer a request; an engine calls this in a worker, on any thread, for each `ask`.

    It never blocks and never raises: what goes wrong is the future's exception.
    """
    reply: Future[bytes] = Future()
    threading.Thread(target=_answer, args=(request, reply), name="fray-request", daemon=True).start()
    return reply


def _answer(request: bytes, reply: "Future[bytes]") -> None:
    try:
        session, act, arguments = pickle.loads(request)
        if act == "ping":
            reply.set_result(pickle.dumps(None))
        elif act == "end_session":
            end_session(pickle.loads(session)[1])
            reply.set_result(pickle.dumps(None))
        elif act == "drain" and not has_session(pickle.loads(session)[1]):
            reply.set_result(pickle.dumps(0))
        else:
            getattr(host_of(session), act)(reply, *arguments)
    except BaseException as error:  # noqa: BLE001 - it is raised in the caller that waits for the answer
        if not reply.done():
            reply.set_exception(error)
