"""The listeners of this process; imported by everything that reports events, so it imports little.

Listeners are named in `FRAY_LISTENERS`, which is read once, when the first thing happens, in every
process; jobs and workers inherit it. A program may add others to its own process.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray._values.events import Event, Listener

VARIABLE = "FRAY_LISTENERS"
_log = logging.getLogger("fray.events")

watching = True
"""False once it is known that nobody listens: what every task looks at, so that silence costs nothing."""

_lock = threading.RLock()
_listeners: "tuple[Listener, ...]" = ()
_specs: tuple[str, ...] = ()  # of those in `_listeners` that were found by name
_read = False  # the environment
_reported: set[int] = set()  # listeners that have raised
_put_off: list[Callable[[], None]] = []  # until there is a listener


def listening() -> bool:
    """Return whether anybody listens in this process."""
    if not _read:
        _read_environment()
    return bool(_listeners)


def once_watched(prepare: Callable[[], None]) -> None:
    """Do what only matters to listeners: now if there may be one, else when the first one is added."""
    # No lock: a listener that is being imported holds it, and this is called by modules while they are.
    _put_off.append(prepare)
    if _listeners or os.environ.get(VARIABLE):
        _prepare()


def _prepare() -> None:
    while _put_off:
        try:
            prepare = _put_off.pop()
        except IndexError:  # another thread took it
            return
        prepare()


def specs() -> tuple[str, ...]:
    """Return what names the listeners of this process, for another process that should have the same."""
    return _specs


def listen(wanted: Iterable[str]) -> None:
    """Have the listeners of these specs; one that cannot be had is logged, and does not stop the program."""
    global _specs
    with _lock:
        for spec in wanted:
            if spec in _specs:
                continue
            _specs = (*_specs, spec)
            try:
                add_listener(_make(spec))
            except Exception as error:  # noqa: BLE001 - a program runs without a listener, too
                _log.warning("no listener %r: %s", spec, error)


def add_listener(listener: "Listener") -> None:
    """Pass every event of this process to a listener from now on."""
    with _lock:
        _reported.discard(id(listener))  # of one that is gone
        _set((*_listeners, listener))


def remove_listener(listener: "Listener") -> None:
    """Pass it no further events; a listener that was never added changes nothing."""
    with _lock:
        _set(tuple(one for one in _listeners if one is not listener))


@contextlib.contextmanager
def use_listener(listener: "Listener") -> Iterator[None]:
    """Pass every event of this process to a listener while the block runs."""
    add_listener(listener)
    try:
        yield
    finally:
        remove_listener(listener)


def tell(event: "Event") -> None:
    """Report an event to every listener; an exception that one raises is logged."""
    for listener in _listeners:
        try:
            listener.on_event(event)
        except Exception:  # noqa: BLE001 - a program does not fail because it is watched
            if id(listener) not in _reported:
                _reported.add(id(listener))
                _log.exception(
                    "%r failed on %s; it stays registered, and further exceptions from it are not logged",
                    listener,
                    event.kind,
                )


def forget() -> None:
    """Drop every listener and read the environment again at the next event."""
    global _listeners, _specs, _read, watching
    with _lock:
        _listeners, _specs, _read, watching = (), (), False, True


def _read_environment() -> None:
    global _read
    with _lock:
        if not _read:
            text = os.environ.get(VARIABLE, "")
            listen(spec.strip() for spec in text.split(",") if spec.strip())
            _read = True
            _set(_listeners)


def _set(listeners: "tuple[Listener, ...]") -> None:
    global _listeners, watching
    with _lock:
        _listeners = listeners
        watching = bool(listeners) or not _read
    if listeners:
        _prepare()


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_in_child)


def _make(spec: str) -> Any:
    from importlib.metadata import EntryPoint

    from fray._discovery.plugins import LISTENERS, load
    from fray._discovery.specs import Spec, bind_options

    parsed = Spec.parse(spec)
    by_path = ":" in parsed.name  # `module:attribute`, for a listener that no distribution offers
    factory = EntryPoint(spec, parsed.name, LISTENERS).load() if by_path else load(LISTENERS, parsed.name)
    return factory(**bind_options(factory, f"listener {parsed.name!r}", parsed.options, {}))
