"""Futures of the standard library that are made of references."""

from concurrent.futures import Future
from functools import partial
from typing import Any

import ray

from fray import TaskCancelledError
from fray.backend import TaskFuture
from fray_ray._context import lending
from fray_ray._context.cancelling import cancel
from fray_ray._context.errors import translate
from fray_ray._context.io_thread import receiving, settling
from fray_ray._context.pending import Pending
from fray_ray._context.waiting_threads import WaitingThreads
from fray_ray._ray_internals.calls import on_ready

_threads = WaitingThreads()


class RefWaits:
    """The futures of one context that wait for their references; what they have read is not pending any more.

    Each reference has one callback, however many futures wait or were abandoned.
    """

    def __init__(self, pending: Pending) -> None:
        self.pending = pending
        # Each step is one operation of a dict, and there is no lock: a signal handler, or a finalizer, may
        # come between any two of them, and wait for a future itself.
        self._futures: dict[Any, dict[RayFuture, bool]] = {}

    def add(self, future: "RayFuture") -> None:
        """Have the future fetch its value on a thread of `_threads` when it is there."""
        while True:
            new: dict[RayFuture, bool] = {}
            waiting = self._futures.setdefault(future.ref, new)
            waiting[future] = True
            if waiting is new:
                on_ready(future.ref, receiving(partial(self._notify, future.ref)))
                return
            if self._futures.get(future.ref) is waiting or not waiting.pop(future, False):
                return
            # else those that waited were settled just now, and this one was not among them

    def remove(self, future: "RayFuture") -> bool:
        """Have the future fetch nothing; return whether it was still waiting."""
        return self._futures.get(future.ref, {}).pop(future, False)

    def _notify(self, ref: Any, error: BaseException | None) -> None:
        """Called on Ray's thread, which is to wait for nothing."""
        _threads.run(partial(self._settle, ref, error))

    def _settle(self, ref: Any, error: BaseException | None) -> None:
        waiting = self._futures.pop(ref, {})
        while waiting:
            future, _ = waiting.popitem()
            _threads.run(partial(future.fetch, error))


class RayFuture(TaskFuture):
    """The future of a reference; passed to a task, it is that reference again.

    Its value is unpickled, and its callbacks are called, on threads of `_threads`: both may use the context,
    and wait.
    """

    def __init__(self, ref: Any, waits: RefWaits) -> None:
        super().__init__(lambda: cancel(ref))  # as the context does: one that runs is interrupted
        self.ref, self._waits = ref, waits
        if not isinstance(ref, ray.ObjectRef):  # a stream, which is there from the first
            self.set_result(ref)
            return
        lending.note([ref])
        if _threads.start():
            waits.add(self)
        else:  # the program has ended: Ray's own thread has to do
            ref.future().add_done_callback(settling(self._take_over))

    def abandon(self) -> None:
        """Settle no more: nobody waits for it. The task goes on."""
        if self._waits.remove(self):
            lending.forget([self.ref])

    def fetch(self, error: BaseException | None) -> None:
        """Settle as the reference did.

        Args:
            error: Why its value will not be known.
        """
        value = None
        if error is None:
            try:
                ray.wait([self.ref])  # until it is on this node: a node that was lost keeps no others waiting
                with _threads.unpickling():
                    value = ray.get(self.ref)
            except BaseException as failure:  # noqa: BLE001 - it is raised in the caller
                error = failure
        self._settle(value, error)

    def _take_over(self, source: "Future[Any]") -> None:
        error = source.exception()
        self._settle(None if error is not None else source.result(), error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        lending.forget([self.ref])
        self._waits.pending.done(self.ref)
        failure = None if error is None else translate(error)
        if isinstance(failure, TaskCancelledError):
            Future.cancel(self)  # not its own, which cancels the task
        if not self.set_running_or_notify_cancel():
            return
        if failure is None:
            self.set_result(value)
        else:
            self.set_exception(failure)
