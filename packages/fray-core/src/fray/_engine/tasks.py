"""One task of this process: from submitted, over its dependencies and its pool, to settled."""

import types
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context, copy_context
from typing import Any, Protocol

from fray._discovery.current import current_context_var
from fray._engine.pool import Job, set_current_task
from fray._engine.refs import (
    ERROR,
    LOCK,
    VALUE,
    LocalRef,
    Packed,
    Settlement,
    failure,
    outcome,
    settle,
    watch,
)
from fray._engine.scope import Scope
from fray._serialization.values import callable_name, pack_exception, unpack_exception
from fray._values.errors import TaskCancelledError


class Pool(Protocol):
    """Where ready jobs go."""

    inline: bool  # whether a job runs inside the call that submits it

    def start(self, job: Job) -> None:
        """Take a job that its caller has just made."""

    def submit(self, job: Job) -> None:
        """Take a job that was waiting for something else until now."""


class Call:
    """A function and its arguments; it is launched once every reference among them has a value."""

    __slots__ = ("_claimed", "_missing", "args", "checked", "context", "fn", "kwargs", "pool", "scope")

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        scope: Scope,
        pool: Pool,
        owner: Any,
        checked: bool,
    ) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.scope, self.pool, self.checked = scope, pool, checked
        self.context: Context = copy_context()
        if current_context_var.get(None) is not owner:
            self.context.run(current_context_var.set, owner)
        self._claimed = False
        self._missing = 0
        self._prepare()

    def _prepare(self) -> None:
        """Make what a kind of call has beyond the arguments."""

    @property
    def label(self) -> str:
        """What errors and `repr` call it."""
        return f"{callable_name(self.fn)}()"

    def begin(self) -> None:
        """Launch now, or as soon as the last of the references among the arguments has its value."""
        pending = pending_refs(self.args, self.kwargs)
        try:
            if pending:
                self._await_arguments(pending)
            else:
                self.pool.start(self)
        except (
            BaseException
        ) as error:  # no thread can be started, or the stack is used up: nobody must wait for it
            self.abort(error)
            raise

    def _await_arguments(self, pending: list[LocalRef[Any]]) -> None:
        # One more than there are, so that none of those that settle meanwhile is the last.
        self._missing = len(pending) + 1
        worklist: list[Settlement] = []
        for ref in pending:
            if not watch(ref, self):
                self.notify(ref, worklist)
        self._arrived()
        for settlement in worklist:
            settle(*settlement)

    def notify(self, source: LocalRef[Any], worklist: list[Settlement]) -> None:
        """Take note that an argument has settled."""
        if source._state == ERROR:
            self.fail(source._value, worklist)
        else:
            self._arrived()

    def _arrived(self) -> None:
        with LOCK:
            self._missing -= 1
            last = not self._missing
        if last:
            self.pool.submit(self)

    def claim(self) -> bool:
        """Take the right to run it, or to end it unrun; only one gets it."""
        with LOCK:
            claimed, self._claimed = self._claimed, True
        return not claimed

    def fail(self, error: Any, worklist: list[Settlement]) -> None:
        """End it unrun because an argument failed."""
        raise NotImplementedError

    def abort(self, error: BaseException) -> None:
        """End it, wherever it is, with an error."""
        raise NotImplementedError

    def run(self) -> None:
        """Run it on this thread; its errors are its result."""
        raise NotImplementedError

    def resolve(self) -> tuple[Any, Any]:
        """Return the arguments with references replaced by values."""
        args = [outcome(arg) if type(arg) is LocalRef else arg for arg in self.args]
        kwargs = self.kwargs
        if kwargs:
            kwargs = {key: outcome(arg) if type(arg) is LocalRef else arg for key, arg in kwargs.items()}
        return args, kwargs

    def encode(self, value: Any) -> Any:
        """Return a result as it is kept: itself, or its pickle where the context checks serialization."""
        return Packed(value, f"the result of {self.label}") if self.checked else value

    def encode_error(self, error: BaseException) -> Any:
        """Return an exception as it is kept, without the frames of this module."""
        if self.checked:
            return failure(unpack_exception(pack_exception(strip_frames(error))))
        return failure(strip_frames(error))


class Task(Call):
    """A call with one result."""

    __slots__ = ("ref",)

    ref: LocalRef[Any]

    def _prepare(self) -> None:
        self.ref = LocalRef(self)

    def fail(self, error: Any, worklist: list[Settlement]) -> None:
        """Settle the result with the argument's failure."""
        if self.claim():
            worklist.append((self.ref, ERROR, error))

    def run(self) -> None:
        """Run the function and settle the result."""
        if self.scope.cancelling and self.cancel(shutting_down(self)):
            return
        if not self.claim():
            return
        before = set_current_task(self)
        try:
            # The function is called from here and not from a helper: inline nesting costs a frame for each.
            args, kwargs = self.resolve()
            value = self.context.run(self.fn, *args, **kwargs)
            if type(value) is types.CoroutineType:
                import asyncio  # 10 ms that a worker of plain functions does not pay

                value = self.context.run(asyncio.run, value)
            state, value = VALUE, self.encode(value)
        except BaseException as error:  # noqa: BLE001 - whatever the task raised is its result
            state, value = ERROR, self.encode_error(error)
        finally:
            set_current_task(before)
        ref = self.ref
        self.fn = self.args = self.kwargs = self.context = None  # type: ignore[assignment]
        settle(ref, state, value)
        if state == ERROR and self.pool.inline and isinstance(value[0], KeyboardInterrupt):
            raise value[0]  # Ctrl-C is the user's, not the task's: it ends the program here and now

    def abort(self, error: BaseException) -> None:
        """Settle the result with an error that is not the function's."""
        self.claim()
        settle(self.ref, ERROR, failure(error))

    def cancel(self, reason: BaseException) -> bool:
        """End it unrun; False where it has started."""
        return self.claim() and settle(self.ref, ERROR, failure(reason))


def shutting_down(call: Call) -> TaskCancelledError:
    """Return the error of a call whose turn came after its context was told to start nothing more."""
    return TaskCancelledError(f"{call.label} had not started when its context was shut down")


def cancel_ref(ref: LocalRef[Any]) -> bool:
    """Cancel the task behind a reference, if it has one that has not started."""
    task = ref._task
    return task is not None and task.cancel(
        TaskCancelledError(f"{task.label} was cancelled before it started")
    )


def pending_refs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[LocalRef[Any]]:
    """Return the references among the arguments that have no value, or a failure."""
    refs = [arg for arg in args if type(arg) is LocalRef and arg._state != VALUE]
    if kwargs:
        refs += [arg for arg in kwargs.values() if type(arg) is LocalRef and arg._state != VALUE]
    return refs


def strip_frames(error: BaseException, file: str = __file__) -> BaseException:
    """Cut the frames of the module that called the task off, so that a traceback starts in the task."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == file:
        traceback = traceback.tb_next
    return error.with_traceback(traceback)


def ref_of_future(future: "Future[Any]") -> LocalRef[Any]:
    """Return a reference that settles as a future of the standard library does."""
    ref: LocalRef[Any] = LocalRef()

    def copy(done: "Future[Any]") -> None:
        try:
            settle(ref, VALUE, done.result())
        except CancelledError as error:
            settle(ref, ERROR, failure(error))
        except BaseException as error:  # noqa: BLE001 - whatever it raised is what the task gets
            settle(ref, ERROR, failure(error))

    future.add_done_callback(copy)
    return ref
