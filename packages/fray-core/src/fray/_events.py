"""What happens to jobs, tasks, actors and leases, told to whoever listens in this process.

Listeners are named in `FRAY_LISTENERS`, which is read once, when the first thing happens, in every
process; jobs and workers inherit it. A program may add others to its own process.
"""

import contextlib
import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

VARIABLE = "FRAY_LISTENERS"
_log = logging.getLogger("fray.events")


class EventKind(enum.StrEnum):
    """What happened. What is submitted in one process starts and ends in another."""

    JOB_SUBMITTED = "job_submitted"
    """`launch` was called. What a listener writes into `carrier` the job finds in its environment."""
    JOB_LAUNCHED = "job_launched"
    """The cluster has taken the job, or refused it."""
    JOB_ENDED = "job_ended"
    """A process that waited for the job has seen its end; told once in each such process."""
    REPLICA_STARTED = "replica_started"
    """In the job: its function is about to be called. Commands tell nothing of themselves."""
    REPLICA_ENDED = "replica_ended"
    TASK_SUBMITTED = "task_submitted"
    """What a listener writes into `carrier` arrives with the task."""
    TASK_STARTED = "task_started"
    TASK_ENDED = "task_ended"
    ACTOR_SUBMITTED = "actor_submitted"
    ACTOR_STARTED = "actor_started"
    """Where the actor lives: its constructor is about to be called."""
    ACTOR_READY = "actor_ready"
    """Its constructor has returned, or raised."""
    CALL_STARTED = "call_started"
    """Where the actor lives: one of its methods is about to be called."""
    CALL_ENDED = "call_ended"
    LEASE_TAKEN = "lease_taken"
    LEASE_SETTLED = "lease_settled"
    """Its item is done, was released, or the lease turned out to be no longer held."""

    @property
    def subject(self) -> str:
        """What it happened to: job, replica, task, actor, call or lease."""
        return self.value.partition("_")[0]

    @property
    def phase(self) -> str:
        """What happened to it: submitted, started, ended …"""
        return self.value.partition("_")[2]


class Outcome(enum.StrEnum):
    """How something ended."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    """A task was cancelled, a stream closed, a job stopped."""
    RELEASED = "released"
    """A lease was given back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened. It never carries arguments, results, items or values of variables.

    Args:
        id: Of the job, task, actor, call or lease; the same in all its events.
        name: Of the job, function, class, method or queue.
        parent_id: Of the job, replica, task or call that submitted it; of a call, its actor.
        time: Seconds since the epoch.
        seconds: How long it took, at the end; how long it waited since it was submitted, at the start.
        error: The name of the exception's type, or why a job failed.
        details: What only some kinds have: `replica`, `item_id`, `attempt`.
        carrier: What a listener sends along from where something is submitted to where it starts.
    """

    kind: EventKind
    id: str
    name: str
    parent_id: str | None = None
    time: float = field(default_factory=time.time)
    seconds: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    details: Mapping[str, str | int] = field(default_factory=dict)
    carrier: dict[str, str] = field(default_factory=dict)


class Listener(Protocol):
    """Hears of events, in the thread where they happen: be quick, safe among threads, and run no task.

    An exception that it raises is logged once and changes nothing.
    """

    def on_event(self, event: Event, /) -> None:
        """Take note of an event."""


watching = True
"""False once it is known that nobody listens: what every task looks at, so that silence costs nothing."""

_lock = threading.RLock()
_listeners: tuple[Listener, ...] = ()
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
    """Do what only matters to listeners: now if there may be one, else before the first one is added."""
    with _lock:
        if not (_listeners or os.environ.get(VARIABLE)):
            _put_off.append(prepare)
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
            except Exception as error:  # noqa: BLE001 - to be watched is no condition for running
                _log.warning("no listener %r: %s", spec, error)


def add_listener(listener: Listener) -> None:
    """Tell a listener of everything that happens in this process from now on."""
    _set((*_listeners, listener))


def remove_listener(listener: Listener) -> None:
    """Tell it nothing more; one that was never added changes nothing."""
    _set(tuple(one for one in _listeners if one is not listener))


@contextlib.contextmanager
def use_listener(listener: Listener) -> Iterator[None]:
    """Tell a listener of everything that happens in this process while the block runs."""
    add_listener(listener)
    try:
        yield
    finally:
        remove_listener(listener)


def tell(event: Event) -> None:
    """Tell every listener; nothing that one raises comes out."""
    for listener in _listeners:
        try:
            listener.on_event(event)
        except Exception:  # noqa: BLE001 - a program does not fail because it is watched
            if id(listener) not in _reported:
                _reported.add(id(listener))
                _log.exception("%r failed on %s; it is told on, its failures are not", listener, event.kind)


def forget() -> None:
    """Drop every listener and read the environment anew when something happens next."""
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


def _set(listeners: tuple[Listener, ...]) -> None:
    global _listeners, watching
    with _lock:
        while listeners and _put_off:
            _put_off.pop()()
        _listeners = listeners
        watching = bool(listeners) or not _read


def _make(spec: str) -> Any:
    from importlib.metadata import EntryPoint

    from fray._plugins import LISTENERS, load
    from fray._specs import Spec, bind_options

    parsed = Spec.parse(spec)
    by_path = ":" in parsed.name  # `module:attribute`, for a listener that no distribution offers
    factory = EntryPoint(spec, parsed.name, LISTENERS).load() if by_path else load(LISTENERS, parsed.name)
    return factory(**bind_options(factory, f"listener {parsed.name!r}", parsed.options, {}))
