"""Jobs and leases as their launchers, waiters and workers report them to listeners."""

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fray._telemetry import listeners as _listeners
from fray._telemetry.instrumentation import Unit, current_id
from fray._values.errors import LeaseExpiredError
from fray._values.events import Event, EventKind, Outcome

if TYPE_CHECKING:
    from fray._values.jobs import JobId, JobInfo, JobRequest

_OUTCOMES = {"succeeded": Outcome.OK, "failed": Outcome.ERROR, "stopped": Outcome.CANCELLED}
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9]")
_ended: dict[str, object] = {}  # the ends of jobs that were reported, and by whom


@contextlib.contextmanager
def launching(request: "JobRequest", job_id: "JobId") -> Iterator[dict[str, str]]:
    """Hold this around a backend's launch; it yields variables that the job's processes must have.

    They name the listeners of those processes, and carry what the listeners here pass on. Without a listener
    there are none.
    """
    if not _listeners.watching or not _listeners.listening():
        yield {}
        return
    unit = Unit(subject="job", name=request.name, id=job_id, parent_id=job_id.parent)
    unit.tell("submitted")
    variables = {variable_of(key): value for key, value in unit.carrier.items()}
    own = request.environment.env_vars if request.environment else {}
    if _listeners.specs() and _listeners.VARIABLE not in own:
        variables[_listeners.VARIABLE] = ",".join(_listeners.specs())
    clock = time.perf_counter()
    try:
        yield variables
    except BaseException as error:
        how = {"outcome": Outcome.ERROR, "error": type(error).__qualname__}
        unit.tell("launched", seconds=time.perf_counter() - clock, **how)
        raise
    unit.tell("launched", seconds=time.perf_counter() - clock, outcome=Outcome.OK)


def variable_of(key: str) -> str:
    """Return the variable that carries a key into a job: `TRACEPARENT` for `traceparent`."""
    return _NOT_IN_A_NAME.sub("_", key.upper())


def job_ended(info: "JobInfo") -> None:
    """Report the end of a job, unless that was done here before; of one that ran again, each end.

    A run is known by its attempts, of a sweep by its counts: `finished_at` of an end may still change.
    """
    attempts, caller = sum(task.attempt for task in info.tasks), object()
    end = f"{info.job_id} {info.status} {attempts} {sorted((info.progress or {}).items())}"
    if _ended.setdefault(end, caller) is not caller:  # atomic: several threads may see the end
        return
    seconds = None
    if info.started_at is not None and info.finished_at is not None:
        seconds = info.finished_at - info.started_at
    reasons = [str(task.reason) for task in info.tasks if task.reason and task.status == "failed"]
    unit = Unit(subject="job", name=info.name, id=info.job_id, parent_id=info.job_id.parent)
    outcome = _OUTCOMES[info.status]
    error = reasons[0] if reasons and outcome is Outcome.ERROR else None
    unit.tell("ended", time=info.finished_at or time.time(), seconds=seconds, outcome=outcome, error=error)


_inside = threading.local()  # a method of a queue that calls another reports nothing twice


def observe_leases(queue_class: type) -> None:
    """Make the methods that a queue's class defines report leases."""
    wrappers = {
        "pop": _taking,
        "pop_many": _taking,
        "done": _settling(Outcome.OK),
        "release": _settling(Outcome.RELEASED),
        "done_many": _settling_many,
    }
    for name, wrapper in wrappers.items():
        if name in vars(queue_class):
            setattr(queue_class, name, wrapper(vars(queue_class)[name]))


def _taking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _listeners.watching or not _outermost(self):
            return method(self, *args, **kwargs)
        with _alone(self):
            taken = method(self, *args, **kwargs)
        tell_taken(self, taken if isinstance(taken, list) else [taken])
        return taken

    return told


def _settling(outcome: Outcome) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def told(self: Any, lease: Any, **kwargs: Any) -> None:
            if not _listeners.watching or not _outermost(self):
                method(self, lease, **kwargs)
            else:
                _settle(self, [lease], outcome, functools.partial(method, self, lease, **kwargs))

        return told

    return wrapper


def _settling_many(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(self: Any, leases: Iterable[Any], **kwargs: Any) -> None:
        if not _listeners.watching or not _outermost(self):
            method(self, leases, **kwargs)
        else:
            leases = list(leases)
            _settle(self, leases, Outcome.OK, functools.partial(method, self, leases, **kwargs))

    return told


def _settle(queue: Any, leases: list[Any], outcome: Outcome, method: Callable[[], Any]) -> None:
    try:
        with _alone(queue):
            method()
    except LeaseExpiredError as error:
        tell_settled(queue, leases, outcome, lost=error)
        raise
    tell_settled(queue, leases, outcome)


def tell_taken(queue: Any, leases: Iterable[Any]) -> None:
    """Report leases that were taken; None is none."""
    for lease in leases:
        if lease is not None:
            _tell(queue, lease, EventKind.LEASE_TAKEN)


def tell_settled(
    queue: Any, leases: Iterable[Any], outcome: Outcome, *, lost: LeaseExpiredError | None = None
) -> None:
    """Report leases that were settled, and those among them that were lost."""
    for lease in leases:
        if lost is not None and lease.lease_id in lost.lease_ids:
            _tell(queue, lease, EventKind.LEASE_SETTLED, outcome=Outcome.ERROR, error=type(lost).__name__)
        else:
            _tell(queue, lease, EventKind.LEASE_SETTLED, outcome=outcome)


def _outermost(queue: Any) -> bool:
    return _listeners.listening() and getattr(_inside, "queue", None) is not queue


@contextlib.contextmanager
def _alone(queue: Any) -> Iterator[None]:
    before, _inside.queue = getattr(_inside, "queue", None), queue
    try:
        yield
    finally:
        _inside.queue = before


def _tell(queue: Any, lease: Any, kind: EventKind, **more: Any) -> None:
    if kind is EventKind.LEASE_TAKEN:
        seconds = getattr(lease, "seconds_in_queue", None)
    else:
        seconds = max(0.0, time.time() - lease.timestamp)
    _listeners.tell(
        Event(
            kind=kind,
            id=lease.lease_id,
            name=str(getattr(queue, "name", type(queue).__name__)),
            parent_id=current_id(),
            seconds=seconds,
            details={"item_id": lease.item_id, "attempt": lease.attempt},
            **more,
        )
    )
