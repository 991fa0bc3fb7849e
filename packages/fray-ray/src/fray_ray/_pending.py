"""What a context has submitted and not yet seen the end of."""

from typing import Any
from weakref import WeakSet

import ray

_LEAST = 64


class Pending:
    """The references of a context's own tasks, until something shows that they are done.

    Holding a reference keeps its result in the object store. So it is let go when its value was read,
    when `wait` found it ready, when another task that is held here takes it, and, for what nobody ever
    looks at, when the collection has doubled since the last look.
    """

    def __init__(self) -> None:
        self._refs: dict[Any, tuple[bytes, ...]] = {}  # with the ids of what each takes, which hold nothing
        self._limit = _LEAST
        # Not held: a stream that its consumer drops is to be closed.
        self.streams: WeakSet[ray.ObjectRefGenerator] = WeakSet()

    def add(self, answer: Any, args: tuple[Any, ...]) -> None:
        """Hold what a call answered; what it takes is done before it is."""
        taken = [arg for arg in args if isinstance(arg, ray.ObjectRef)]
        for arg in taken:
            self._refs.pop(arg, None)
        if isinstance(answer, ray.ObjectRefGenerator):
            self.streams.add(answer)
            return
        self._refs[answer] = tuple(arg.binary() for arg in taken)
        if len(self._refs) >= self._limit:
            self._look()

    def done(self, ref: Any) -> None:
        """Let go of a reference."""
        self._refs.pop(ref, None)

    def takers(self, ref: Any) -> list[Any]:
        """Return what takes a reference as an argument, and may not be done."""
        identity = ref.binary()
        return [taker for taker, taken in list(self._refs.items()) if identity in taken]

    def all(self) -> list[Any]:
        """Return what may not be done."""
        return list(self._refs)

    def drain(self) -> None:
        """Block until all is done."""
        while refs := self.all():
            ray.wait(refs, num_returns=len(refs), fetch_local=False)
            for ref in refs:
                self.done(ref)

    def _look(self) -> None:
        refs = self.all()
        ready, pending = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        for ref in ready:
            self.done(ref)
        self._limit = max(_LEAST, 2 * len(pending))
