"""Runs each call on the thread that starts it: what makes a context synchronous."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from fray import DeadlockError
from fray.backend import (
    CallExecutor,
    InProcessRunner,
    OneAtATime,
    Ready,
    apart,
    dispatch,
    run_aside,
    set_lender,
)
from fray_local._runners.event_loop import EventLoopActor


class InlineRunner(InProcessRunner):
    """The `TaskRunner` of a `SyncContext`."""

    def __init__(self, *, check_serialization: bool) -> None:
        super().__init__(check_serialization=check_serialization)
        self._executor = CallExecutor(check_serialization=check_serialization, inline=True)
        self._inside = ThreadsInside()
        self._loops: WeakSet[LoopBesideInline] = WeakSet()

    def submit(self, job: Callable[[], None]) -> None:
        """Do it here."""
        job()

    def start(self, calls: Sequence[Any]) -> None:
        """Run them now, and then what became ready by that."""
        if _thread.settles_on_loop:
            _run_aside(partial(self.start, calls))
            return
        with self._inside:
            for call in calls:
                with apart():
                    ready = self._executor.run(call)
                dispatch(ready)

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Make the items that were requested; always here, as the context's end waits for this."""
        if parked:
            with self._inside, apart():
                self._executor.run(call)  # nothing becomes ready by a stream

    def new_actor(self, actor: Any) -> Any:
        """Return what runs an actor's calls."""
        if actor.asynchronous:
            loop = LoopBesideInline(actor, self._executor)
            self._loops.add(loop)
            return loop
        return InlineActor(self._executor, self._inside)

    def close(self, *, wait: bool) -> None:
        """Do nothing: there is no thread to end."""

    def disown(self) -> bool:
        """Return whether a child can use it: no call is left to a thread that only the parent has."""
        return not self._inside.others and not any(loop.runs for loop in self._loops)


class ThreadsInside:
    """Around what runs calls: which threads do so at the moment, once for each of their nested calls."""

    def __init__(self) -> None:
        self._threads: list[int] = []  # changed by single steps of the interpreter

    @property
    def others(self) -> bool:
        """Whether another thread than this one is inside."""
        return any(thread != threading.get_ident() for thread in self._threads)

    def __enter__(self) -> None:
        self._threads.append(threading.get_ident())

    def __exit__(self, *exc_info: object) -> None:
        self._threads.remove(threading.get_ident())


class _Thread(threading.local):
    actors: "tuple[InlineActor, ...]" = ()  # that this thread runs methods of
    settles_on_loop = False  # it ends calls of an async actor, and is needed for the others


_thread = _Thread()


class LoopBesideInline(EventLoopActor):
    """An async actor whose thread serves it alone: what it makes ready runs in another one."""

    def _settle(self, settle: Callable[..., Ready], *args: Any) -> None:
        _thread.settles_on_loop = True
        try:
            super()._settle(settle, *args)
        finally:
            _thread.settles_on_loop = False


def _run_aside(act: Callable[[], object]) -> None:
    _thread.settles_on_loop = False  # where there can be no other thread, this one runs it
    try:
        run_aside(act, "fray-inline")
    finally:
        _thread.settles_on_loop = True


class InlineActor:
    """One actor's calls, one at a time, on whichever thread finds it idle.

    A call made from inside the actor waits for the one that makes it, as on every other backend.
    """

    interrupts = False

    def __init__(self, executor: CallExecutor, inside: ThreadsInside) -> None:
        self._executor, self._inside = executor, inside
        self._queue: deque[Any] = deque()
        self._alone = OneAtATime()
        self._instance: Any = None

    def start(self, calls: Sequence[Any]) -> None:
        """Run them now, unless another thread does, which then runs these, too."""
        with self._inside:
            self._queue.extend(calls)
            if _thread.settles_on_loop:
                _run_aside(partial(self.start, ()))
            else:
                self._alone.drain(self._queue, self._run_queued)

    def _run_queued(self) -> None:
        outer, before = _thread.actors, set_lender(self)
        try:
            _thread.actors = (*outer, self)
            while self._queue:
                call = self._queue.popleft()
                with apart():
                    ready = self._executor.run(call, self._instance)
                if call.kind == "construct":
                    self._instance = call.state
                dispatch(ready)
        finally:
            _thread.actors = outer
            set_lender(before)

    def lend(self, timeout: float | None, sources: Sequence[Any]) -> None:
        """Refuse to wait for ever for a call of an actor that this thread is inside of."""
        if timeout is None and _wait_for(sources, _thread.actors):
            raise DeadlockError(
                "an actor's method waits for a call that can only run after it: an actor runs one call at "
                "a time; call the method directly on self instead of through the handle"
            )

    def reclaim(self) -> None:
        """Do nothing: nothing was lent."""

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Make the items that were requested."""
        if parked:
            self.start((call,))

    def interrupt(self, call: Any) -> None:
        """Never called: a method that runs here is the caller's own."""

    def end(self, *, kill: bool) -> None:
        """Release the instance."""
        if kill:
            self._queue.clear()
        self._instance = None

    def close(self, *, wait: bool) -> None:
        """Do nothing: there is no thread to end."""


def _wait_for(sources: Sequence[Any], actors: tuple[InlineActor, ...]) -> bool:
    """Return whether a reference, or a call, can only settle after a method of one of these actors."""
    left, seen = list(sources), set[Any]()
    while left:
        source = left.pop()
        call = source if hasattr(source, "runner") else source.call
        if call is None or call in seen:
            continue
        seen.add(call)
        if getattr(call.runner, "runner", None) in actors:
            return True
        left += call.refs
    return False
