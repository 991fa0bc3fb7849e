"""Calls: from submitted, over their dependencies and a runner, to settled."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from fray._contracts.task_runner import CallKind, CallRunner, Ready, StoredError
from fray._engine.refs import (
    ERROR,
    NOTHING,
    PENDING,
    VALUE,
    EngineRef,
    settle,
    stored_error,
    tell_watchers,
    watch,
    watchers,
)
from fray._engine.scope import Scope
from fray._serialization.values import callable_name
from fray._values.errors import TaskCancelledError
from fray._values.options import ActorOptions, TaskOptions

DEFAULT_TASK = TaskOptions()
_new = object.__new__


class Call:
    """One call with one result; subclasses are those of actors and those with many results.

    The thread that deletes `_unclaimed` has the right to run it, or to end it unrun.
    """

    __slots__ = (
        "__weakref__",
        "_losses",
        "_missing",
        "_name",
        "_unclaimed",
        "options",
        "payload",
        "ref",
        "refs",
        "runner",
        "scope",
        "state",
    )

    kind: CallKind = "task"
    method = ""
    streaming = False

    def __init__(
        self,
        payload: Any,
        refs: Sequence[EngineRef[Any]],
        name: str | Callable[..., Any],
        options: TaskOptions | ActorOptions,
        runner: CallRunner,
        scope: Scope,
    ) -> None:
        self.payload, self.refs, self._name, self.options = payload, refs, name, options
        self.runner, self.scope = runner, scope
        self.state: Any = None
        self._unclaimed = True
        # Written out, here and below: a Python call is a tenth of what a task costs in threads.
        self.ref: EngineRef[Any] = _new(EngineRef)
        self.ref.state, self.ref._call = PENDING, self

    @property
    def label(self) -> str:
        """What errors, logs and `repr` call it."""
        name = self._name
        return f"{name if isinstance(name, str) else callable_name(name)}()"

    @property
    def over(self) -> bool:
        """Whether it has been settled."""
        return bool(self.ref.state)

    @property
    def unwanted(self) -> bool:
        """Whether its context wants nothing more to start."""
        return self.scope.cancelling

    @property
    def retries_left(self) -> int:
        """How often it may still run again after the death of its worker."""
        allowed = self.options.max_retries if isinstance(self.options, TaskOptions) else 0
        return (allowed or 0) - getattr(self, "_losses", 0)

    # Dependencies.

    def begin(self) -> None:
        """Start it now, or as soon as the last of its references has a value.

        Raises:
            Exception: Its runner cannot run it; the caller withdraws it.
        """
        if self.refs:
            pending = [ref for ref in self.refs if ref.state != VALUE]
            if pending:
                dispatch(self._await(pending))
                return
        self.hand_over()

    def hand_over(self) -> None:
        """Hand it to its runner, which is the first to know of it."""
        self.runner.start((self,))

    def withdraw(self, error: BaseException) -> None:
        """Settle it: its submission was left by an exception, and nobody got its reference."""
        self.claim()  # where the runner has it nevertheless, it must not run
        dispatch(self.fail(error))  # no thread can be started, the stack is used up, Ctrl-C

    def strand(self, cause: BaseException) -> None:
        """Settle it: Ctrl-C, say, has ended what was to run it, and nothing else would."""
        self.withdraw(TaskCancelledError(f"{self.label} did not run: its turn was ended by {cause!r}"))

    def _await(self, pending: Sequence[EngineRef[Any]]) -> Ready:
        # One more than there are, so that none of those that settle meanwhile is the last.
        self._missing = [None] * len(pending)
        ready: list[Any] = []
        for ref in pending:
            if not watch(ref, self):
                self.notify(ref, ready)
        self._arrived(ready)
        return ready

    def notify(self, source: EngineRef[Any], ready: list[Any]) -> None:
        """Record that an argument has settled."""
        if source.state != ERROR:
            self._arrived(ready)
            return
        # A failure that runs down a chain of dependents runs flat, not nested.
        outer = _thread.failing
        if outer is not None:
            outer.append((self, source.content))
            return
        failing = _thread.failing = deque([(self, source.content)])
        try:
            while failing:
                call, error = failing.popleft()
                ready.extend(call.cancel_unstarted(error))
        finally:
            _thread.failing = None

    def _arrived(self, ready: list[Any]) -> None:
        # `pop` of an empty list is the one that comes last, and only one can come then.
        try:
            self._missing.pop()
        except IndexError:
            ready.append(self)

    # What the runner says of it.

    def claim(self) -> bool:
        """Take the right to run it; False where it must not run."""
        try:
            del self._unclaimed
        except AttributeError:
            return False
        return True

    def unclaim(self) -> None:
        """Give that right back."""
        self._unclaimed = True

    def succeed(self, value: Any = None) -> Ready:
        """Settle it with its value."""
        ref = self.ref  # as `_settle` does
        try:
            del ref._call
        except AttributeError:
            return NOTHING
        ref.content = value
        ref.state = VALUE
        try:
            ready = tell_watchers(ref) if ref in watchers else NOTHING
        finally:  # a callback may raise what ends the program
            self.payload, self.refs = None, ()
            scope = self.scope
            scope.open.discard(self)
            if scope.closing:
                scope.leave(self)
        return ready

    def fail(self, error: BaseException | StoredError) -> Ready:
        """Settle it with an exception."""
        return self._settle(ERROR, stored_error(error))

    def _settle(self, state: int, content: Any) -> Ready:
        ready: Ready | None = NOTHING
        try:
            ready = settle(self.ref, state, content)
        finally:  # as in `succeed`
            if ready is not None:
                self.payload, self.refs = None, ()
                scope = self.scope
                scope.open.discard(self)
                if scope.closing:
                    scope.leave(self)
        return NOTHING if ready is None else ready

    def cancel_unstarted(self, reason: BaseException | StoredError) -> Ready:
        """Settle it with an error unless it was claimed."""
        return self._fail_unrun(reason) or NOTHING

    def _fail_unrun(self, reason: BaseException | StoredError) -> Ready | None:
        """Settle it with an error; None where it was claimed."""
        claimed = False
        try:
            claimed = self.claim()
            return self.fail(reason) if claimed else None
        except BaseException:  # Ctrl-C: who cancels it next finds it as it was
            if claimed and not self.over:
                self.unclaim()
            raise

    def lost(self, error: BaseException) -> Ready:
        """Run it again, or fail: its worker died."""
        if self.over:
            return NOTHING
        if self.retries_left <= 0 or self.scope.cancelling:
            return self.fail(error)
        self._losses = getattr(self, "_losses", 0) + 1
        self.state = None
        self.unclaim()
        return (self,)

    def cancel(self) -> bool:
        """Cancel it before its start, or while it runs where its runner can; see `JobContext.cancel`."""
        if self.over:
            return False
        ready = self._fail_unrun(TaskCancelledError(f"{self.label} was cancelled before it started"))
        if ready is None:
            return self._interrupt()
        dispatch(ready)
        return True

    def _interrupt(self) -> bool:
        if not self.runner.interrupts or self.over:
            return False
        dispatch(self.fail(TaskCancelledError(f"{self.label} was cancelled")))
        self.runner.interrupt(self)
        return True

    credits = 0

    def push(self, values: Sequence[Any]) -> bool:
        """Refuse: it has one result."""
        raise TypeError(f"{self.label} is not a stream")


def shutting_down(call: Call) -> TaskCancelledError:
    """Return the error of a call whose turn came after its context was asked to start nothing more."""
    return TaskCancelledError(f"{call.label} had not started when its context was shut down")


def dispatch(ready: Ready) -> None:
    """Hand calls that became ready to their runners; what a runner cannot take fails.

    A runner that runs calls at once comes back here for what became ready by that: this thread then continues
    with it below, so that a chain of dependents runs flat, not nested.
    """
    if not ready:
        return
    outer = _thread.ready
    if outer is not None:
        outer.extend(ready)
        return
    queue = _thread.ready = deque(ready)
    try:
        while queue:
            for runner, group in groupby(list(queue), attrgetter("runner")):
                calls = list(group)
                queue.extend(_start(runner, calls))
                for _ in calls:  # only now: those that Ctrl-C keeps from running are in here
                    queue.popleft()
    except BaseException as error:  # Ctrl-C in a call that ran here: nothing would run the others
        _thread.ready = None
        for call in queue:
            if call.claim():
                call.strand(error)
        raise
    finally:
        _thread.ready = None


def _start(runner: CallRunner, calls: list[Any]) -> Ready:
    try:
        runner.start(calls)
    except Exception as error:  # noqa: BLE001 - what waits for them must get it
        return [ready for call in calls for ready in call.fail(error)]
    return NOTHING


class apart:  # noqa: N801 - a context manager, named as it reads
    """Around a call that runs inside `start`: what it makes ready itself starts at once."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer, _thread.ready = _thread.ready, None

    def __exit__(self, *exc_info: object) -> None:
        _thread.ready = self._outer


class _Thread(threading.local):
    call: Any = None
    failing: deque[Any] | None = None
    ready: deque[Any] | None = None


_thread = _Thread()


def current_call() -> Any:
    """Return the call that this thread runs, or None."""
    return _thread.call


def set_current_call(call: Any) -> Any:
    """Set the call that this thread runs from now on, and return the one before."""
    before, _thread.call = _thread.call, call
    return before


def inside(scope: Scope) -> bool:
    """Return whether this thread runs something that is counted in a scope."""
    call = _thread.call
    return call is not None and call.scope is scope
