"""References and handles inside pickled functions and exceptions: taken out, sent beside, put back in.

Ray counts a reference, and sends the address of its owner with it, only where Ray pickles it. Bytes that we
pickle are opaque to Ray. So each reference and each handle of an actor leaves its number in the bytes, and a
list of them travels beside, in an argument of the call or an attribute of the exception, which Ray pickles.
"""

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from fray.backend import dumps, pack_exception, register_reducer, unpack_exception

Packed = tuple[bytes, list[Any]]  # plain values: plain Ray code without Fray unpickles the exception too


class Captured:
    """What the function of a call holds.

    A class of its own, by which a worker knows it from an argument of the user's. Inside it, Ray does not
    wait for the references, nor replace them by their values.
    """

    __slots__ = ("held",)

    def __init__(self, held: list[Any]) -> None:
        self.held = held

    def __reduce__(self) -> tuple[Any, ...]:
        return Captured, (self.held,)


class _Now(threading.local):
    """What a thread is at."""

    taken: dict[int, int] | None = None  # by identity the numbers of what it has taken out, while it pickles
    held: list[Any] | None = None  # what has been taken out, or what is put back in


_now = _Now()


def dumps_apart(value: Any, what: str) -> Packed:
    """Pickle a value, as `fray.backend.dumps` does; return what has to travel beside the bytes, too."""
    with _holding([], {}) as held:
        return dumps(value, what), held


def loads_with(data: bytes, held: list[Any]) -> Any:
    """Unpickle what `dumps_apart` returned."""
    with _holding(held, None):
        return pickle.loads(data)


def pack(error: BaseException) -> Packed:
    """Do what `pack_exception` does; return what has to travel beside the bytes, too."""
    with _holding([], {}) as held:
        return pack_exception(error), held


def unpack(packed: Packed) -> BaseException:
    """Return the exception that `pack` was given."""
    data, held = packed
    with _holding(held, None):
        return unpack_exception(data)


@contextmanager
def _holding(held: list[Any], taken: dict[int, int] | None) -> Iterator[list[Any]]:
    before = _now.held, _now.taken  # a finalizer may come in between, and call a task
    try:
        _now.held, _now.taken = held, taken
        yield held
    finally:
        _now.held, _now.taken = before


def _reduce(ref: Any) -> Any:
    """Leave a number in place of a reference or a handle; outside of this module, do what its class does."""
    if _now.taken is None or _now.held is None:
        return ref.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    number = _now.taken.setdefault(id(ref), len(_now.held))
    if number == len(_now.held):
        _now.held.append(ref)
    return _put_back, (number,)


def _put_back(number: int) -> Any:
    assert _now.held is not None
    return _now.held[number]


for _kind in (ray.ObjectRef, ray.actor.ActorHandle):
    register_reducer(_kind, _reduce)
