"""What generator methods of named actors yield: pulled from the actor, one item after the other.

An actor server of Iris gives one value for a call. So the call of a generator method gives a key, and each
item is a call of its own; here they come out of a stream of this process, which is a few items ahead of its
reader.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fray import create_context
from fray_iris._actor_host import CLOSE, NEXT

if TYPE_CHECKING:
    from fray_iris._actor_line import ActorLine

# Each stream that waits for an item takes a thread meanwhile.
_AT_ONCE = 256

_threads: Any = None


def threads() -> Any:
    """Return the context of this process's streams, which reads all references that are made here."""
    global _threads
    if _threads is None:
        _threads = create_context("threadpool", max_workers=_AT_ONCE)
    return _threads


def _forget() -> None:
    """In a forked child: the threads are its parent's."""
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_forget)


def stream_of(opened: "Future[str]", line: "ActorLine") -> Any:
    """Return the stream of a generator method.

    Args:
        opened: The call, which gives the key of the stream at the actor.
        line: Requests the items.
    """
    return threads().run(_pulled, opened, line)


def _pulled(key: str, line: "ActorLine") -> Iterator[Any]:
    try:
        while item := line.call(NEXT, (key,), {}, None).result():
            yield item[0]
    finally:
        line.call(CLOSE, (key,), {}, None)
