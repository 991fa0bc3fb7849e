"""Runs calls in threads: tasks in the context's pool, an actor's in one of its own, or in its event loop."""

from collections.abc import Callable, Sequence
from typing import Any

from fray.backend import CallExecutor, CallPacker, Ready
from fray_local._runners.event_loop import EventLoopActor
from fray_local._runners.thread_pool import ThreadPool


class ThreadRunner:
    """The `TaskRunner` of a `ThreadContext`."""

    interrupts = False

    def __init__(self, workers: int, *, check_serialization: bool) -> None:
        self._packer = CallPacker(check_serialization=check_serialization)
        # Attributes, because every task would pay for a method that only calls on.
        self.pack = self._packer.pack
        self.belong_to = self._packer.belong_to
        self._executor = executor = CallExecutor(check_serialization=check_serialization)
        self._pool = ThreadPool(workers, "fray-worker", executor.run)
        self.start, self.rescue = self._pool.submit, self._pool.rescue

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Resume a stream that waited."""
        if parked:
            self._pool.submit((call,))

    def interrupt(self, call: Any) -> None:
        """Never called: a thread cannot be stopped."""

    def new_actor(self, actor: Any) -> Any:
        """Return what runs an actor's calls."""
        kind = EventLoopActor if actor.asynchronous else ThreadActor
        return kind(actor, self._executor)

    def call_back(self, fn: Callable[[], object]) -> None:
        """Call it on the thread that ran the task: it serves that task alone."""
        fn()

    def close(self, *, wait: bool) -> None:
        """End the threads."""
        self._pool.close(wait=wait)

    def abort(self) -> None:
        """Do nothing: a thread cannot be stopped."""

    def disown(self) -> bool:
        """Return that the threads belong to the parent."""
        return False


class ThreadActor:
    """One actor's calls, in threads of its own."""

    interrupts = False

    def __init__(self, actor: Any, executor: CallExecutor) -> None:
        self._executor, self._concurrency = executor, actor.concurrency
        self._instance: Any = None
        self._over = False
        self._pool = ThreadPool(1, f"fray-actor-{actor.name or actor.label}", self._run, lends=False)

    def _run(self, call: Any) -> Ready:
        ready = self._executor.run(call, self._instance)
        if call.kind == "construct":
            self._instance, call.state = call.state, None
            if self._over:  # it was killed meanwhile
                self._instance = None
            self._pool.resize(self._concurrency)
        return ready

    def start(self, calls: Sequence[Any]) -> None:
        """Queue calls; only one thread runs before the constructor has."""
        self._pool.submit(calls)

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Resume a stream that waited."""
        if parked:
            self._pool.submit((call,))

    def interrupt(self, call: Any) -> None:
        """Never called: a thread cannot be stopped."""

    def end(self, *, kill: bool) -> None:
        """Release the instance, and let the threads end after what they have."""
        del kill
        self._over = True  # set first: the end of a constructor looks at it last
        self._instance = None
        self._pool.close(wait=False)

    def close(self, *, wait: bool) -> None:
        """End the threads."""
        self._pool.close(wait=wait)
