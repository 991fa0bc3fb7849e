"""What a context has submitted and not yet seen the end of."""

import contextlib
import math
import threading
import time
import weakref
from typing import Any
from weakref import WeakSet

import ray

from fray.backend import NoThreadError, seconds, start_thread

_LEAST = 64
_OFTEN, _SELDOM = 0.1, 2.0  # seconds between looks of the thread, the more often the more it releases
_COST = 20  # times as long as a look takes is the least time between two


class Pending:
    """The references of a context's own tasks, until something shows that they are done.

    Holding a reference keeps its result in the object store. So it is released when its value was read,
    when `wait` found it ready, and, for what nobody ever looks at, when the collection has doubled since
    the last look. What another task takes is usually large and never looked at: while there is such, a
    thread looks as well. It is not released before it is done: the task that takes it may be cancelled, or
    its actor die, and it runs on.
    """

    def __init__(self) -> None:
        # With the ids of what each takes, which hold nothing, and the name of an actor's call.
        self._refs: dict[Any, tuple[tuple[bytes, ...], str | None]] = {}
        self._limit = _LEAST
        self._looker: threading.Thread | None = None
        self._lock = threading.RLock()  # a finalizer may come in between
        self._closed = threading.Event()
        # Not held: a stream that its consumer drops is to be closed.
        self.streams: WeakSet[ray.ObjectRefGenerator] = WeakSet()

    def add(self, answer: Any, args: tuple[Any, ...], actor_call: str | None = None) -> None:
        """Hold what a call answered.

        Args:
            actor_call: The name of the call, where it is an actor's.
        """
        taken = tuple(arg.binary() for arg in args if isinstance(arg, ray.ObjectRef))
        if isinstance(answer, ray.ObjectRefGenerator):
            self.streams.add(answer)
        else:
            self._refs[answer] = taken, actor_call
        if len(self._refs) >= self._limit:
            self.look()
            self._limit = max(_LEAST, 2 * len(self._refs))
        if taken:
            self.watch()

    def done(self, ref: Any) -> None:
        """Release a reference."""
        self._refs.pop(ref, None)

    def takers(self, ref: Any) -> list[Any]:
        """Return what takes a reference as an argument, or takes such a taker, and may not be done."""
        takers: dict[bytes, list[Any]] = {}
        for taker, (taken, _) in list(self._refs.items()):
            for identity in taken:
                takers.setdefault(identity, []).append(taker)
        found = dict.fromkeys(takers.get(ref.binary(), ()))
        new = list(found)
        while new:
            new = [each for taker in new for each in takers.get(taker.binary(), ()) if each not in found]
            found.update(dict.fromkeys(new))
        return list(found)

    def all(self) -> list[Any]:
        """Return what may not be done."""
        return list(self._refs)

    def drain(self, *, actor_seconds: float | None = None) -> list[str]:
        """Block until all is done.

        Args:
            actor_seconds: How long calls of actors are waited for, once the tasks are done.

        Returns:
            The names of the actors' calls that are not done.
        """
        while tasks := [ref for ref, (_, name) in list(self._refs.items()) if name is None]:
            self._wait(tasks, None)
        deadline = math.inf if actor_seconds is None else time.monotonic() + actor_seconds
        while calls := self.all():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._wait(calls, seconds(left))
        return [name for _, name in list(self._refs.values()) if name is not None]

    def look(self) -> bool:
        """Release what is done; return whether there was any."""
        refs = self.all()
        if refs:
            self._wait(refs, 0)
        return len(self._refs) < len(refs)

    def close(self) -> None:
        """End the thread that looks."""
        self._closed.set()
        looker = self._looker
        if looker is not None and looker.is_alive() and looker is not threading.current_thread():
            looker.join(_SELDOM)

    def watch(self) -> None:
        """Let a thread release what is done, as long as there is something that is not."""
        if self._refs and self._looker is None:
            self._start_looker()

    def _start_looker(self) -> None:
        looker = threading.Thread(
            target=_look_now_and_then,
            args=(weakref.ref(self), self._closed),
            name="fray-pending",
            daemon=True,
        )
        with self._lock:
            if self._looker is None:
                self._looker = looker
                with contextlib.suppress(NoThreadError):  # the program has ended: there is no room to save
                    start_thread(looker)

    def _rest_looker(self) -> bool:
        """Let the thread that looks end where there is nothing to look at."""
        with self._lock:
            if self._refs:
                return False
            self._looker = None
            return True

    def _wait(self, refs: list[Any], timeout: float | None) -> None:
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=timeout, fetch_local=False)
        for ref in ready:
            self.done(ref)


def _look_now_and_then(collection: "weakref.ref[Pending]", closed: threading.Event) -> None:
    delay = _OFTEN
    while not closed.wait(delay):
        pending = collection()
        if pending is None or not ray.is_initialized() or pending._rest_looker():
            return
        start = time.monotonic()
        try:
            released = pending.look()
        except Exception:  # noqa: BLE001 - Ray has ended, or is another cluster's, and so have the tasks
            return
        delay = _OFTEN if released else min(_SELDOM, 1.5 * delay)
        delay = max(delay, _COST * (time.monotonic() - start))
        del pending
