"""Functions and classes that report events where they run: what is submitted while there is a listener.

They travel as what they stand for would, with the ids, and come to the listeners of the process in
which they are called. Nothing here is reached while nobody listens.
"""

import contextlib
import os
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fray._serialization.functions import is_async_function, is_generator_function
from fray._serialization.values import callable_name
from fray._serialization.wrapped_classes import WrappedClass
from fray._telemetry import listeners as _listeners
from fray._values.events import Event, EventKind, Outcome
from fray._values.job_states import JobId

_current: ContextVar[str | None] = ContextVar("fray_unit", default=None)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Something that runs: what its events have in common."""

    subject: str
    name: str
    id: str = field(default_factory=lambda: os.urandom(8).hex())
    parent_id: str | None = field(default_factory=lambda: current_id())
    submitted_at: float | None = None
    details: dict[str, str | int] = field(default_factory=dict)
    carrier: dict[str, str] = field(default_factory=dict)
    listeners: tuple[str, ...] = field(default_factory=_listeners.specs)

    def tell(self, phase: str, **more: Any) -> None:
        """Report an event to the listeners of this process."""
        _listeners.tell(
            Event(
                kind=EventKind(f"{self.subject}_{phase}"),
                id=self.id,
                name=self.name,
                parent_id=self.parent_id,
                details=self.details,
                carrier=self.carrier,
                **more,
            )
        )

    @classmethod
    def submitted(cls, subject: str, name: str) -> "Unit":
        """Make a unit that its listeners know of."""
        unit = cls(subject=subject, name=name, submitted_at=time.time())
        unit.tell("submitted")
        return unit


def current_id() -> str | None:
    """Return the id of what runs here: a task or a call, else the job that this process is part of."""
    return _current.get() or os.environ.get("FRAY_JOB_ID") or None


@contextlib.contextmanager
def running(unit: Unit, end: str = "ended") -> Iterator[None]:
    """Report the start and the end of a block that runs here, and be the parent of what it submits."""
    _listeners.listen(unit.listeners)
    waited = None if unit.submitted_at is None else max(0.0, time.time() - unit.submitted_at)
    unit.tell("started", seconds=waited)
    before, clock = _current.get(), time.perf_counter()
    _current.set(unit.id)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        # No token: a generator may be closed in another context than the one that it was started in.
        if _current.get() == unit.id:
            _current.set(before)
        unit.tell(end, seconds=time.perf_counter() - clock, **_how(error))


def _how(error: BaseException | None) -> dict[str, Any]:
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return {"outcome": Outcome.OK}
    # What is not an Exception was sent from outside: an interrupt, the end of a stream's consumer.
    outside = not isinstance(error, Exception | SystemExit) or isinstance(error, CancelledError)
    outcome = Outcome.CANCELLED if outside else Outcome.ERROR
    return {"outcome": outcome, "error": type(error).__qualname__}


class Observed:
    """A function that reports its events; like a `functools.partial`, it has the real one as `func`."""

    def __init__(self, func: Callable[..., Any], unit: Unit) -> None:
        self.func = self.__wrapped__ = func
        self._unit = unit

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_generator_function(self.func):
            stream = self._async_stream if is_async_function(self.func) else self._stream
            return stream(args, kwargs)
        if is_async_function(self.func):
            return self._await(args, kwargs)
        with running(self._unit):
            value = self.func(*args, **kwargs)
            if type(value) is not types.CoroutineType:
                return value
            import asyncio  # 20 ms that only asynchronous functions pay

            return asyncio.run(value)  # as every context would: it ends when what it returned has

    async def _await(self, args: Any, kwargs: Any) -> Any:
        with running(self._unit):
            return await self.func(*args, **kwargs)

    async def _async_stream(self, args: Any, kwargs: Any) -> AsyncIterator[Any]:
        with running(self._unit):
            async with contextlib.aclosing(self.func(*args, **kwargs)) as items:
                async for item in items:
                    yield item

    def _stream(self, args: Any, kwargs: Any) -> Iterator[Any]:
        with running(self._unit), contextlib.closing(self.func(*args, **kwargs)) as items:
            for item in items:  # noqa: UP028 - no `yield from`: some resume generators with `send`
                yield item

    # Equal where the functions are, so that what a backend keeps for each function it keeps once.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observed) and bool(other.func == self.func)

    def __hash__(self) -> int:
        return hash(self.func)


def _observed_call(actor: Unit, name: str, method: Callable[..., Any]) -> Observed:
    title = f"{actor.name}.{name}"
    call = Unit(subject="call", name=title, parent_id=actor.id, carrier=actor.carrier)
    return Observed(method, replace(call, listeners=actor.listeners))


def observed(subject: str, target: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    """Return a task's function, or an actor's class, that reports its events where it runs.

    Args:
        subject: `task` or `actor`.
        name: None for the name of the target.
    """
    if not callable(target):
        return target  # the context refuses it
    unit = Unit.submitted(subject, name or callable_name(target))
    if subject == "task":
        return Observed(target, unit)
    return WrappedClass(target, partial(running, unit, end="ready"), partial(_observed_call, unit))


def observed_replica(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a job's function so that it reports its events; a job's process calls the result.

    Backends call this in the job, and leave it out if the job's environment has no Fray.
    """
    job_id = os.environ.get("FRAY_JOB_ID")
    if not job_id or not _listeners.listening():
        return function
    replica = int(os.environ.get("FRAY_REPLICA_ID", "0"))
    own = JobId(job_id)
    name = (own.sweep or own).leaf.rpartition("-")[0]  # members of a sweep have its name
    unit_id = f"{job_id}:{replica}"
    unit = Unit(subject="replica", name=name, id=unit_id, parent_id=job_id, details={"replica": replica})
    return Observed(function, unit)
