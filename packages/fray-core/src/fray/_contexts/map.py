"""`map` over any context: a bounded number of tasks in flight, small items many to a task.

How many items a task gets follows from how long the last ones took: enough for a few milliseconds
of work, so that what a task costs does not matter, and no more, so that all workers end together.
"""

import asyncio
import contextlib
import inspect
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fray._contracts.context import ObjectRef
from fray._serialization.functions import is_generator_function
from fray._serialization.values import callable_name, pack_exception, unpack_exception
from fray._values.errors import SerializationError

if TYPE_CHECKING:
    from fray._contexts.base import ContextBase

_SECONDS = 0.005  # of work that a task is to have
_MOST_ITEMS = 1024  # of one task: an endless input is read that far ahead, times the window
_GROWTH = 4

Item = tuple[Any, ...]


def map_tasks(
    context: "ContextBase",
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    *,
    ordered: bool,
    progress: bool,
    window: int,
) -> Iterator[Any]:
    """Check the arguments now; run the items as the result is iterated."""
    if not iterables:
        raise ValueError("map needs at least one iterable")
    if not callable(fn):
        raise ValueError(f"map needs a function, got {fn!r}")
    items = zip(*iterables, strict=False)
    # A context that runs one task at a time, inside its caller, gains nothing from larger ones.
    if window == 1 or is_generator_function(fn) or inspect.iscoroutinefunction(fn):
        values = _drive(context, _Singly(fn, items), ordered, window)
    else:
        values = _drive(context, _Chunked(fn, items), ordered, window)
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

    def __init__(self, fn: Callable[..., Any], items: Iterator[Item]) -> None:
        self._fn, self._items = fn, items

    def start(self, context: "ContextBase") -> Any:
        """Start the next task; None at the end of the input."""
        item = next(self._items, None)
        return None if item is None else context.run(self._fn, *item)

    def values(self, outcome: Any) -> Iterator[Any]:
        """Yield the values in what a task gave."""
        yield outcome


class _Chunked(_Singly):
    """As many items per task as take a few milliseconds."""

    def __init__(self, fn: Callable[..., Any], items: Iterator[Item]) -> None:
        super().__init__(fn, items)
        self._run_chunk = _chunk_runner(fn)
        self._size = 1
        self._alone: deque[Item] = deque()  # read, but each to be run by itself
        self._by_reference: dict[type, bool] = {}

    def start(self, context: "ContextBase") -> Any:
        """Start the next task; None at the end of the input."""
        chunk = [] if self._alone else self._read()
        if chunk:
            try:
                return context.run(self._run_chunk, chunk)
            except SerializationError:
                # One by one: those before it run, and the error of what cannot travel names the user's own.
                self._alone.extendleft(reversed(chunk))
        return context.run(self._fn, *self._alone.popleft()) if self._alone else None

    def _read(self) -> list[Item]:
        """Read the items of the next task; one that is to be run by itself ends them."""
        chunk: list[Item] = []
        try:
            while len(chunk) < self._size and (item := next(self._items, None)) is not None:
                if self._has_references(item):
                    self._alone.append(item)
                    break
                chunk.append(item)
        except Exception as error:
            if not chunk:
                raise
            self._items = _raising(error)  # at its turn, after what was read before it
        return chunk

    def values(self, outcome: Any) -> Iterator[Any]:
        """Yield the values in what a task gave; raise what its last item raised."""
        if type(outcome) is not _Outcome:
            yield outcome
            return
        values, failure, seconds = outcome.values, outcome.failure, outcome.seconds
        if values:
            wanted = int(_SECONDS * len(values) / max(seconds, 1e-9))
            self._size = max(1, min(wanted, _GROWTH * len(values), _MOST_ITEMS))
        yield from values
        if failure is not None:
            raise failure.error

    def _has_references(self, item: Item) -> bool:
        """Whether an argument is to arrive as a value: only the task's own arguments do."""
        for arg in item:
            kind = type(arg)
            known = self._by_reference.get(kind)
            if known is None:
                known = self._by_reference[kind] = issubclass(kind, ObjectRef | Future)
            if known:
                return True
        return False


def _raising(error: Exception) -> Iterator[Item]:
    raise error
    yield ()


class _Outcome:
    """The values of the items of one task, up to the first that raised."""

    __slots__ = ("failure", "seconds", "values")

    def __init__(self, values: list[Any], failure: Failure | None, seconds: float) -> None:
        self.values, self.failure, self.seconds = values, failure, seconds


def _chunk_runner(fn: Callable[..., Any]) -> Callable[[list[Item]], _Outcome]:
    """Return a function of its own for this map, so that `fn` is shipped with it and not with each chunk."""

    def run_chunk(items: list[Item]) -> _Outcome:
        values: list[Any] = []
        start = time.perf_counter()
        failure = None
        try:
            for item in items:
                value = fn(*item)
                if type(value) is types.CoroutineType:
                    value = asyncio.run(value)
                values.append(value)
        except Exception as error:  # noqa: BLE001 - it comes out at its turn, after the values before it
            failure = Failure(error)
        return _Outcome(values, failure, time.perf_counter() - start)

    run_chunk.__qualname__ = callable_name(fn)
    return run_chunk


def _drive(context: "ContextBase", source: _Singly, ordered: bool, window: int) -> Iterator[Any]:
    flying: deque[Any] = deque()
    failure: Exception | None = None  # of an item that could not be started, or not be read
    try:
        while True:
            try:
                while failure is None and len(flying) < window and (ref := source.start(context)) is not None:
                    flying.append(ref)
            except Exception as error:  # noqa: BLE001 - it comes out at its turn, after the items before it
                failure = error
            if not flying:
                break
            # It stays among them while it is waited for: whoever is interrupted there cancels it too.
            ref = flying[0] if ordered else context.wait(list(flying), num_returns=1)[0][0]
            outcome = context.get(ref)
            flying.remove(ref)
            yield from source.values(outcome)
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
