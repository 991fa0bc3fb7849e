"""`map` over any context: a bounded number of items in flight, the first failure cancels the rest."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray._base import ContextBase


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
    values = _drive(context, fn, zip(*iterables, strict=False), ordered, window)
    return _with_progress(values, iterables) if progress else values


def _drive(
    context: "ContextBase",
    fn: Callable[..., Any],
    items: Iterator[tuple[Any, ...]],
    ordered: bool,
    window: int,
) -> Iterator[Any]:
    flying: deque[Any] = deque()
    try:
        for item in items:
            flying.append(context.run(fn, *item))
            if len(flying) >= window:
                yield context.get(_next_ready(context, flying, ordered))
        while flying:
            yield context.get(_next_ready(context, flying, ordered))
    finally:
        # Left early (a failure, or a consumer that stopped): nothing more of this map starts.
        for ref in flying:
            context.cancel(ref)


def _next_ready(context: "ContextBase", flying: deque[Any], ordered: bool) -> Any:
    if ordered:
        return flying.popleft()
    ready, pending = context.wait(list(flying), num_returns=1)
    flying.clear()
    flying.extend(pending)
    return ready[0]


def _with_progress(values: Iterator[Any], iterables: tuple[Iterable[Any], ...]) -> Iterator[Any]:
    from fray._progress import progress_bar

    lengths: list[int] = []
    with contextlib.suppress(TypeError):  # an iterator without a length: the bar then counts only
        lengths = [len(iterable) for iterable in iterables]  # type: ignore[arg-type]
    with progress_bar("map", min(lengths) if lengths else None) as advance:
        for value in values:
            yield value
            advance()
