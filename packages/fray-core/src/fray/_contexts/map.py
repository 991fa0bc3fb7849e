"""`map` over any context: a bounded number of tasks in flight, small items many to a task.

How many items a task gets follows from how long the last ones took to run, and to read and ship: enough
for a few milliseconds, so that what a task costs does not matter, and no more, so that all workers end
together, and that the items of a slow input do not wait for each other.
"""

import asyncio
import contextlib
import inspect
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

from fray._contracts.refs import ObjectRef
from fray._serialization.functions import is_generator_function
from fray._serialization.values import callable_name, pack_exception, unpack_exception
from fray._values.errors import SerializationError

_MOST_ITEMS = 4096  # of one task: an endless input is read that far ahead, times the window
_PROBE_SECONDS = 0.05  # that the first tasks are waited for before more of their size start

Item = tuple[Any, ...]


class TaskSource(Protocol):
    """The part of a context that `map` needs; see `JobContext`."""

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Start a task."""
        ...

    def wait(self, refs: Any, /, *, num_returns: int = 1, timeout: float | None = None) -> Any:
        """Wait for tasks."""
        ...

    def get(self, ref: Any, /) -> Any:
        """Return a result."""
        ...

    def _cancel_all(self, refs: list[Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class MapPace:
    """How `map` divides its items among a context's tasks.

    Args:
        window: Tasks that may be in flight.
        first: Tasks that start before it is known how long an item takes; as many as the window by default.
        seconds: Of work that a task is to have.
        growth: How many times as many items as the last tasks had the next ones may have.
    """

    window: int
    first: int | None = None
    seconds: float = 0.005
    growth: int = 4


def map_tasks(
    context: TaskSource,
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    *,
    ordered: bool,
    progress: bool,
    pace: MapPace,
) -> Iterator[Any]:
    """Check the arguments now; run the items as the result is iterated."""
    if not iterables:
        raise ValueError("map needs at least one iterable")
    if not callable(fn):
        raise ValueError(f"map needs a function, got {fn!r}")
    # A context that runs one task at a time, inside its caller, gains nothing from larger ones.
    source: _Singly
    if pace.window == 1 or is_generator_function(fn) or inspect.iscoroutinefunction(fn):
        source = _Singly(fn, zip(*iterables, strict=False), pace)
    else:
        source = _Chunked(fn, iterables, pace)
    values = _drive(context, source, ordered)
    return _with_progress(values, iterables) if progress else values


class Failure:
    """What an item raised, on its way back among the values of the items before it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_failure, (pack_exception(self.error),)


def _unpack_failure(data: bytes) -> Failure:
    return Failure(unpack_exception(data))


class _Singly:
    """One task per item."""

    def __init__(self, fn: Callable[..., Any], items: Iterator[Any], pace: MapPace) -> None:
        self._fn, self._items, self._pace = fn, items, pace
        self.limit = pace.window  # how many tasks may be in flight now

    def start(self, context: TaskSource) -> Any:
        """Start the next task; None at the end of the input."""
        item = next(self._items, None)
        return None if item is None else context.run(self._fn, *item)

    def values(self, outcome: Any) -> tuple[list[Any], BaseException | None]:
        """Return the values in what a task gave, and what was raised after them."""
        return [outcome], None

    def is_slow(self, context: TaskSource, flying: "deque[Any]") -> bool:
        """Whether the first tasks let the others wait: then more of them start, without knowing more."""
        if self.limit == self._pace.window or context.wait([flying[0]], timeout=_PROBE_SECONDS)[0]:
            return False
        self.limit = self._pace.window
        return True


class _Chunked(_Singly):
    """As many items per task as take a few milliseconds to read, to ship or to run."""

    def __init__(self, fn: Callable[..., Any], iterables: tuple[Iterable[Any], ...], pace: MapPace) -> None:
        self._several = len(iterables) > 1
        # One iterable needs no tuples: packing and unpacking them costs more than a tiny item does.
        super().__init__(fn, zip(*iterables, strict=False) if self._several else iter(iterables[0]), pace)
        self.limit = pace.first or pace.window
        self._run_chunk = _chunk_runner(fn, self._several)
        self._size = 1
        self._seconds_to_start = 0.0  # for each item of the last task: reading and shipping it
        self._alone: deque[Any] = deque()  # read, but each to be run by itself
        self._ahead: list[Any] = []  # read after one that is to be run by itself
        self._by_reference: dict[type, bool] = {}

    def start(self, context: TaskSource) -> Any:
        """Start the next task; None at the end of the input."""
        began = time.perf_counter()
        chunk = [] if self._alone else self._read()
        if chunk:
            try:
                ref = context.run(self._run_chunk, chunk)
            except SerializationError:
                # One by one: those before it run, and the error of what cannot travel names the user's own.
                self._alone.extendleft(reversed(chunk))
            else:
                self._seconds_to_start = (time.perf_counter() - began) / len(chunk)
                return ref
        if not self._alone:
            return None
        item = self._alone.popleft()
        return context.run(self._fn, *item) if self._several else context.run(self._fn, item)

    def _read(self) -> list[Any]:
        """Read the items of the next task; one that is to be run by itself ends them."""
        chunk, self._ahead = self._ahead[: self._size], self._ahead[self._size :]
        try:
            chunk.extend(islice(self._items, self._size - len(chunk)))  # what it has read stays if it fails
        except Exception as error:
            if not chunk:
                raise
            self._items = _raising(error)  # at its turn, after what was read before it
        if self._has_references(chunk):
            first = next(i for i, item in enumerate(chunk) if self._has_references([item]))
            self._alone.append(chunk[first])
            self._ahead = chunk[first + 1 :] + self._ahead
            del chunk[first:]
        return chunk

    def values(self, outcome: Any) -> tuple[list[Any], BaseException | None]:
        """Return the values in what a task gave, and what its last item raised."""
        if type(outcome) is not _Outcome:
            return [outcome], None
        values, failure = outcome.values, outcome.failure
        if values:
            seconds = max(outcome.seconds / len(values), self._seconds_to_start, 1e-9)
            enough, at_most = int(self._pace.seconds / seconds), self._pace.growth * len(values)
            self._size = max(1, min(enough, at_most, _MOST_ITEMS))
            if min(enough, _MOST_ITEMS) <= at_most:  # it grows no more
                self.limit = self._pace.window
        return values, None if failure is None else failure.error

    def _has_references(self, items: list[Any]) -> bool:
        """Whether an argument is to arrive as a value: only the task's own arguments do."""
        known = self._by_reference
        for kind in set(map(type, chain.from_iterable(items) if self._several else items)):
            if kind not in known:
                known[kind] = issubclass(kind, ObjectRef | Future)
            if known[kind]:
                return True
        return False


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


class _Outcome:
    """The values of the items of one task, up to the first that raised."""

    __slots__ = ("failure", "seconds", "values")

    def __init__(self, values: list[Any], failure: Failure | None, seconds: float) -> None:
        self.values, self.failure, self.seconds = values, failure, seconds


def _chunk_runner(fn: Callable[..., Any], several: bool) -> Callable[[list[Any]], _Outcome]:
    """Return a function of its own for this map, so that `fn` is shipped with it and not with each chunk."""

    def run_chunk(items: list[Any]) -> _Outcome:
        values: list[Any] = []
        append = values.append
        start = time.perf_counter()
        failure = None
        try:
            if several:
                for item in items:
                    append(fn(*item))
            else:
                for item in items:
                    append(fn(item))
        except (KeyboardInterrupt, SystemExit):  # how a task is cancelled, and how a backend ends a worker
            raise
        except BaseException as error:  # noqa: BLE001 - it comes out at its turn, after the values before it
            failure = Failure(error)
        if types.CoroutineType in set(map(type, values)):
            values, failure = _awaited(values, failure)
        return _Outcome(values, failure, time.perf_counter() - start)

    run_chunk.__qualname__ = callable_name(fn)
    return run_chunk


def _awaited(values: list[Any], failure: Failure | None) -> tuple[list[Any], Failure | None]:
    """Run the coroutines among the values, up to the first that raises."""
    done: list[Any] = []
    rest = iter(values)
    try:
        for value in rest:
            is_coroutine = type(value) is types.CoroutineType
            done.append(asyncio.run(value) if is_coroutine else value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - as in run_chunk
        for value in rest:
            if type(value) is types.CoroutineType:
                value.close()
        return done, Failure(error)
    return done, failure


def _drive(context: TaskSource, source: _Singly, ordered: bool) -> Iterator[Any]:
    flying: deque[Any] = deque()
    failure: Exception | None = None  # of an item that could not be started, or not be read
    try:
        while True:
            try:
                while (
                    failure is None
                    and len(flying) < source.limit
                    and (ref := source.start(context)) is not None
                ):
                    flying.append(ref)
            except Exception as error:  # noqa: BLE001 - it comes out at its turn, after the items before it
                failure = error
            if not flying:
                break
            if source.is_slow(context, flying):
                continue
            # It stays among them while it is waited for: an interrupt there cancels it too.
            ref = flying[0] if ordered else context.wait(list(flying), num_returns=1)[0][0]
            outcome = context.get(ref)
            flying.remove(ref)
            values, raised = source.values(outcome)
            yield from values
            if raised is not None:
                raise raised
        if failure is not None:
            raise failure
    finally:
        # Left early (a failure, or a consumer that stopped): nothing more of this map starts.
        context._cancel_all(list(flying))


def _with_progress(values: Iterator[Any], iterables: tuple[Iterable[Any], ...]) -> Iterator[Any]:
    from fray._contexts.progress import progress_bar

    lengths: list[int] = []
    with contextlib.suppress(TypeError):  # an iterator without a length: the bar then counts only
        lengths = [len(iterable) for iterable in iterables]  # type: ignore[arg-type]
    with progress_bar("map", min(lengths) if lengths else None) as advance:
        for value in values:
            yield value
            advance()
