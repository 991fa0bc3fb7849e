"""Futures of the standard library, made of references and turned into references."""

import itertools
import threading
from concurrent.futures import Future
from typing import Any

import ray

from fray import TaskCancelledError
from fray.backend import pack_exception
from fray_ray._context import lending
from fray_ray._context.calls import put
from fray_ray._context.cancelling import cancel
from fray_ray._context.errors import translate
from fray_ray._context.io_thread import settling
from fray_ray._context.remote import Promises
from fray_ray._context.waiting_threads import WaitingThreads
from fray_ray._ray_internals.calls import on_ready

_threads = WaitingThreads()
_AT_A_TIME = 100_000  # promises of one context that may be waited for


class RayFuture(Future[Any]):
    """The future of a reference; passed to a task, it is that reference again.

    Its value is unpickled, and its callbacks are called, on threads of `_threads`: both may use the context,
    and wait.
    """

    def __init__(self, ref: Any) -> None:
        super().__init__()
        self.ref = ref
        lending.note([ref])
        if _threads.start():
            on_ready(ref, lambda error: _threads.run(lambda: self._fetch(error)))
        else:  # the program has ended: Ray's own thread has to do
            ref.future().add_done_callback(settling(self._settle))

    def cancel(self) -> bool:
        """Cancel the task, as the context's `cancel` does: one that runs is interrupted."""
        return self.cancelled() or (cancel(self.ref) and super().cancel())

    def _fetch(self, error: BaseException | None) -> None:
        fetched: Future[Any] = Future()
        if error is not None:
            fetched.set_exception(error)
        else:
            try:
                fetched.set_result(ray.get(self.ref))
            except BaseException as failure:  # noqa: BLE001 - it is raised in the caller
                fetched.set_exception(failure)
        self._settle(fetched)

    def _settle(self, source: "Future[Any]") -> None:
        lending.forget([self.ref])
        error = source.exception()
        failure = None if error is None else translate(error)
        if isinstance(failure, TaskCancelledError):
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        if failure is None:
            self.set_result(source.result())
        else:
            self.set_exception(failure)


class PendingPromises:
    """Turns futures of this process into references that tasks anywhere can wait for, by one actor."""

    def __init__(self) -> None:
        self._actor: Any = None
        self._lock = threading.RLock()  # a finalizer may come in between
        self._numbers = itertools.count()

    def argument(self, future: "Future[Any]") -> Any:
        """Return what to pass to a task in place of a future: its value, or a reference that will have it."""
        if isinstance(future, RayFuture):
            return future.ref
        if future.done() and not future.cancelled() and future.exception() is None:
            return future.result()
        actor, number = self._holder(), next(self._numbers)
        ref = actor.wait.remote(number)
        future.add_done_callback(lambda done: self._keep(actor, number, done))
        return ref

    def close(self) -> None:
        """End the actor; nobody waits for a promise any more."""
        with self._lock:
            actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor)

    def _holder(self) -> Any:
        with self._lock:
            if self._actor is None:
                made = ray.remote(Promises).options(num_cpus=0, max_concurrency=_AT_A_TIME).remote()
                self._actor = self._actor or made
            return self._actor

    def _keep(self, actor: Any, number: int, future: "Future[Any]") -> None:
        if self._actor is None:
            return
        value, packed = None, None
        try:
            value = _by_reference(future.result())
        except BaseException as error:  # noqa: BLE001 - the failure of the future is the task's, whatever it is
            packed = pack_exception(error)
        # In a list, for Ray would wait for the reference, and not make the call where its task fails.
        actor.keep.remote(number, [value], packed)


def _by_reference(value: Any) -> Any:
    return value if isinstance(value, ray.ObjectRef) else put(value, "the value of a future")
