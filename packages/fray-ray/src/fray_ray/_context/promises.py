"""Futures of other libraries that are passed to tasks: references that tasks anywhere can wait for."""

import itertools
import threading
from concurrent.futures import Future
from typing import Any

import ray

from fray_ray._context.calls import put
from fray_ray._context.cancelling import cancel_when_dropped
from fray_ray._context.captured import pack
from fray_ray._context.errors import OURS
from fray_ray._context.futures import RayFuture
from fray_ray._context.remote import FrayPromises
from fray_ray._ray_internals.calls import actor_id

_AT_A_TIME = 100_000  # promises of one context that may be waited for


class PendingPromises:
    """Turns futures of this process into references that tasks anywhere can wait for, by one actor.

    Where the process of the actor dies, what it had fails, and the next future has another actor.
    """

    def __init__(self) -> None:
        self._actor: Any = None
        self._life: Any = None  # the reference of a call that lasts as long as the actor
        self._lock = threading.RLock()  # a finalizer may come in between
        self._numbers = itertools.count()

    def argument(self, future: "Future[Any]") -> Any:
        """Return what to pass to a task in place of a future: its value, or a reference that will have it."""
        if isinstance(future, RayFuture):
            return future.ref
        if future.done() and not future.cancelled() and future.exception() is None:
            return future.result()
        actor, number = self._living_actor(), next(self._numbers)
        ref = actor.wait.remote(number)
        future.add_done_callback(lambda done: self._keep(actor, number, done))
        return ref

    def close(self) -> None:
        """End the actor; nobody waits for a promise any more."""
        with self._lock:
            actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor)

    def _living_actor(self) -> Any:
        with self._lock:
            if self._actor is not None and ray.wait([self._life], timeout=0, fetch_local=False)[0]:
                self._actor = None
            if self._actor is None:
                made: Any = ray.remote(FrayPromises).options(num_cpus=0, max_concurrency=_AT_A_TIME).remote()
                if self._actor is None:  # else a finalizer has made one
                    OURS.add(actor_id(made).hex())
                    self._actor, self._life = made, made.live.remote()
                    cancel_when_dropped(self, self._life)  # Ray ends no actor that has a call
            return self._actor

    def _keep(self, actor: Any, number: int, future: "Future[Any]") -> None:
        if self._actor is not actor:  # it was closed, or has died
            return
        value, packed = None, None
        try:
            value = _by_reference(future.result())
        except BaseException as error:  # noqa: BLE001 - the failure of the future is the task's, whatever it is
            packed = pack(error)
        # In a list, for Ray would wait for the reference, and not make the call where its task fails.
        actor.keep.remote(number, [value], packed)


def _by_reference(value: Any) -> Any:
    return value if isinstance(value, ray.ObjectRef) else put(value, "the value of a future")
