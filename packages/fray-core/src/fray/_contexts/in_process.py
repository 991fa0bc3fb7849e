"""A `TaskRunner` for calls that run in this process, wherever a subclass lets them."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fray._contexts.runner_context import TaskRunnerContext
from fray._contracts.task_runner import PackedCall
from fray._engine.calls import dispatch
from fray._engine.execution import CallExecutor, CallPacker
from fray._engine.locking import OneAtATime


class InProcessRunner(ABC):
    """Everything of a `TaskRunner` but where calls run, which `submit` of a subclass decides.

    An actor runs one call at a time, with `submit` as well; each call of an async method has its own loop.

    Args:
        check_serialization: Pickle arguments and results as a cluster would.
    """

    interrupts = False

    def __init__(self, *, check_serialization: bool = False) -> None:
        self._packer = CallPacker(check_serialization=check_serialization)
        self._executor = CallExecutor(check_serialization=check_serialization)

    @abstractmethod
    def submit(self, job: Callable[[], None]) -> None:
        """Let `job()` be called soon, once, in some thread of this process; it raises nothing.

        A job that waits for another occupies its thread meanwhile, so a pool of a fixed size must run more
        jobs than that, or nested tasks never end.

        Raises:
            RuntimeError: It cannot be run; its task fails with this.
        """

    @abstractmethod
    def close(self, *, wait: bool) -> None:
        """Let the threads end when no job is left; with `wait`, block until they have.

        It is called several times, also from a job, and only once all jobs were submitted.
        """

    def belong_to(self, context: TaskRunnerContext) -> None:
        """Store what `get_job_context` returns inside the calls."""
        self._packer.belong_to(context)

    def pack(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PackedCall:
        """Return a call for this process."""
        return self._packer.pack(fn, args, kwargs)

    def start(self, calls: Sequence[Any]) -> None:
        """Submit each."""
        for call in calls:
            self.submit(partial(self._run, call))

    def _run(self, call: Any) -> None:
        dispatch(self._executor.run(call))

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Resume a stream that waited."""
        if parked:
            self.start((call,))

    def interrupt(self, call: Any) -> None:  # noqa: B027 - a thread cannot be stopped
        """Never called: a thread cannot be stopped."""

    def new_actor(self, actor: Any) -> "SerialActor":
        """Return what runs an actor's calls, one at a time."""
        return SerialActor(self.submit, self._executor)

    def call_back(self, fn: Callable[[], object]) -> None:
        """Call it on the thread that ran the task: it serves that task alone."""
        fn()

    def abort(self) -> None:  # noqa: B027 - a thread cannot be stopped
        """Do nothing: a thread cannot be stopped."""

    def disown(self) -> bool:
        """Return that the threads belong to the parent."""
        return False


class SerialActor:
    """One actor's calls, one at a time and in order, wherever its runner runs jobs."""

    interrupts = False

    def __init__(self, submit: Callable[[Callable[[], None]], None], executor: CallExecutor) -> None:
        self._submit, self._executor = submit, executor
        self._queue: deque[Any] = deque()
        self._alone = OneAtATime()
        self._instance: Any = None

    def start(self, calls: Sequence[Any]) -> None:
        """Queue calls; a job runs them unless one does already."""
        self._queue.extend(calls)
        self._submit(self._work)

    def _work(self) -> None:
        self._alone.drain(self._queue, self._run_queued)

    def _run_queued(self) -> None:
        while self._queue:
            call = self._queue.popleft()
            ready = self._executor.run(call, self._instance)
            if call.kind == "construct":
                self._instance = call.state
            dispatch(ready)

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Resume a stream that waited."""
        if parked:
            self.start((call,))

    def interrupt(self, call: Any) -> None:
        """Never called: a thread cannot be stopped."""

    def end(self, *, kill: bool) -> None:
        """Release the instance."""
        if kill:
            self._queue.clear()
        self._instance = None

    def close(self, *, wait: bool) -> None:
        """Do nothing: the threads are the runner's."""
