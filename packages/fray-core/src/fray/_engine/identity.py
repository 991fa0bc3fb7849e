"""What is pickled as itself: a reference, a stream, an actor or a context comes back as the same object.

A pickle holds a key, counted in the process that the thing lives in. In that process the key finds it;
in a worker of that process a finder makes a proxy of the key.
"""

import os
import threading
from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from fray._values.errors import WrongProcessError

_PROCESS = os.urandom(16).hex()
_numbers = count()
_keys: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()  # of what was pickled once: it keeps its key

thing_by_key: "WeakValueDictionary[Any, Any]" = WeakValueDictionary()
"""What has a key in this process, for as long as something else keeps it alive."""

Identity = tuple[str, int, Any, str]
"""Process, process id, key, and the type's name for messages."""

ForeignFinder = Callable[[str, int, Any, str], Any]

_foreign_finder: ForeignFinder | None = None


def set_foreign_finder(finder: ForeignFinder | None) -> None:
    """In a worker process: set what finds things of the process that the worker belongs to."""
    global _foreign_finder
    _foreign_finder = finder


class keeping:  # noqa: N801 - a context manager, named as it reads
    """Collect what is pickled by identity in the block: the holder of the pickle must keep that alive."""

    __slots__ = ("_outer",)

    def __enter__(self) -> list[Any]:
        self._outer, _pickling.kept = _pickling.kept, []
        return _pickling.kept

    def __exit__(self, *exc_info: object) -> None:
        _pickling.kept = self._outer


class finding:  # noqa: N801 - a context manager, named as it reads
    """While this thread unpickles: set what finds things that are not in this process, or no longer."""

    __slots__ = ("_finder", "_outer")

    def __init__(self, finder: Callable[[str, Any], Any]) -> None:
        self._finder = finder

    def __enter__(self) -> None:
        self._outer, _pickling.finder = _pickling.finder, self._finder

    def __exit__(self, *exc_info: object) -> None:
        _pickling.finder = self._outer


class _Pickling(threading.local):
    kept: list[Any] | None = None
    finder: Callable[[str, Any], Any] | None = None


_pickling = _Pickling()


def identity_of(thing: Any) -> Identity:
    """Return what names a thing in pickles; the same each time."""
    key = _keys.get(thing)
    if key is None:
        key = next(_numbers)
        thing_by_key[key] = thing  # before anybody can have the key; a lost race has made one for nothing
        key = _keys.setdefault(thing, key)
    return _PROCESS, os.getpid(), key, type(thing).__name__


def reduce_by_identity(thing: Any) -> tuple[Any, ...]:
    """Return what `__reduce__` of a thing that pickles as itself returns."""
    note_kept(thing)
    return find_by_identity, identity_of(thing)


def note_kept(thing: Any) -> None:
    """Report to the surrounding `keeping`, if any, that the pickle only names this object."""
    if _pickling.kept is not None:
        _pickling.kept.append(thing)


_WORDS = {"EngineRef": "reference", "EngineStream": "stream", "ActorHandle": "handle of an unnamed actor"}


def find_by_identity(process: str, pid: int, key: Any, kind: str) -> Any:
    """Return the thing that a pickle names.

    Raises:
        WrongProcessError: It lives in another process, or was gone before its pickle was loaded.
    """
    finder = _pickling.finder
    if process != _PROCESS or pid != os.getpid():
        if finder is not None and (found := finder(process, key)) is not None:
            return found
        if _foreign_finder is not None:
            return _foreign_finder(process, pid, key, kind)
        raise WrongProcessError(
            f"a {_WORDS.get(kind, kind)} of process {pid} arrived in process {os.getpid()}, which is another "
            "program or job: it belongs to the context that made it, which lives there; pass the value "
            "itself, name the actor, or make the context in the job (get_job_context())"
        )
    try:
        return thing_by_key[key]
    except KeyError:
        if finder is not None and (found := finder(process, key)) is not None:
            return found
        raise WrongProcessError(
            f"a {kind} was unpickled after the last reference to it was gone; keep one until it is unpickled"
        ) from None
