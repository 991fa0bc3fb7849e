"""`os.fork`: the child has a copy of every context and none of its threads, so it can use or end none."""

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """What a forked child inherits and cannot use."""

    def disown(self) -> None:
        """In the child: refuse everything, wait for nothing, notify nothing."""


_inherited: "WeakSet[Forkable]" = WeakSet()


def disown_in_children(thing: Forkable) -> None:
    """Let a forked child of this process disown a thing, for as long as that lives."""
    _inherited.add(thing)


def _in_child() -> None:
    for thing in list(_inherited):
        thing.disown()
    _inherited.clear()


os.register_at_fork(after_in_child=_in_child)
