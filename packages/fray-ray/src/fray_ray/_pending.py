"""What a context has submitted and not yet seen the end of."""

import math
import time
from typing import Any
from weakref import WeakSet

import ray

from fray.backend import seconds

_LEAST = 64


class Pending:
    """The references of a context's own tasks, until something shows that they are done.

    Holding a reference keeps its result in the object store. So it is released when its value was read,
    when `wait` found it ready, when another task that is held here takes it, and, for what nobody ever
    looks at, when the collection has doubled since the last look.
    """

    def __init__(self) -> None:
        # With the ids of what each takes, which hold nothing, and the name of an actor's call.
        self._refs: dict[Any, tuple[tuple[bytes, ...], str | None]] = {}
        self._limit = _LEAST
        # Not held: a stream that its consumer drops is to be closed.
        self.streams: WeakSet[ray.ObjectRefGenerator] = WeakSet()

    def add(self, answer: Any, args: tuple[Any, ...], actor_call: str | None = None) -> None:
        """Hold what a call answered; what it takes is done before it is.

        Args:
            actor_call: The name of the call, where it is an actor's.
        """
        taken = [arg for arg in args if isinstance(arg, ray.ObjectRef)]
        for arg in taken:
            self._refs.pop(arg, None)
        if isinstance(answer, ray.ObjectRefGenerator):
            self.streams.add(answer)
            return
        self._refs[answer] = tuple(arg.binary() for arg in taken), actor_call
        if len(self._refs) >= self._limit:
            self._look()

    def done(self, ref: Any) -> None:
        """Release a reference."""
        self._refs.pop(ref, None)

    def takers(self, ref: Any) -> list[Any]:
        """Return what takes a reference as an argument, and may not be done."""
        identity = ref.binary()
        return [taker for taker, (taken, _) in list(self._refs.items()) if identity in taken]

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

    def _wait(self, refs: list[Any], timeout: float | None) -> None:
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=timeout, fetch_local=False)
        for ref in ready:
            self.done(ref)

    def _look(self) -> None:
        refs = self.all()
        self._wait(refs, 0)
        self._limit = max(_LEAST, 2 * len(self._refs))
