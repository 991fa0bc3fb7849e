"""Items pushed and answers yielded in one order, with a bound on what is under way."""

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fray._contracts.replies import Reply
from fray._values.checks import check_count, check_seconds
from fray._values.errors import GetTimeoutError
from fray._values.push_options import PushOptions

_LONGEST_WAIT = 600.0  # seconds of one question to the queue
_MOST_ASKED = 500  # items in one question


class Window:
    """What of a `map` is under way: which items to push next, and whose answers to request.

    Args:
        timeout: Seconds that the answer to the first item may take, from when all before it are answered.
    """

    def __init__(self, items: Iterable[Any], in_flight: int, timeout: float | None) -> None:
        check_count("in_flight", in_flight, 1)
        if timeout is not None:
            check_seconds("timeout", timeout)
        self._items, self._in_flight, self._timeout = iter(items), in_flight, timeout
        self._waiting: deque[str] = deque()
        self._found: dict[str, Reply] = {}
        self._end: float | None = None

    def to_push(self) -> list[Any]:
        """Return the next items, half of the window at once: a request for each would cost more than it."""
        if len(self._waiting) > self._in_flight // 2:
            return []
        return list(islice(self._items, self._in_flight - len(self._waiting)))

    def pushed(self, item_ids: Iterable[str]) -> None:
        """Note what is under way."""
        self._waiting.extend(map(str, item_ids))

    def begin_first(self) -> bool:
        """Wait for the answer to the first item from now on; False when none is under way."""
        self._end = None if self._timeout is None else time.monotonic() + self._timeout
        return bool(self._waiting)

    def to_ask(self) -> tuple[list[str], float]:
        """Return whose answers to request, and how long to wait; nobody's when the first has its own."""
        if self._waiting[0] in self._found:
            return [], 0.0
        left = _LONGEST_WAIT if self._end is None else max(0.0, self._end - time.monotonic())
        asked = islice((item_id for item_id in self._waiting if item_id not in self._found), _MOST_ASKED)
        return list(asked), min(left, _LONGEST_WAIT)

    def found(self, replies: Mapping[str, Reply]) -> None:
        """Note answers.

        Raises:
            GetTimeoutError: There is none, and the time is over.
        """
        self._found.update(replies)
        if not replies and self._end is not None and time.monotonic() >= self._end:
            raise GetTimeoutError(
                f"item {self._waiting[0]!r} has no answer after {self._timeout:g} s; "
                f"{len(self._waiting)} items of this map are in the queue"
            )

    def take(self) -> Any:
        """Return the first item's answer, or raise it."""
        return self._found.pop(self._waiting.popleft()).get()


def map_in_order(
    push: Callable[[Iterable[Any], PushOptions], list[Any]],
    fetch: Callable[..., Mapping[str, Reply]],
    window: Window,
    options: PushOptions,
) -> Iterator[Any]:
    """Yield answers in the order of their items."""
    while True:
        if more := window.to_push():
            window.pushed(push(more, options))
        if not window.begin_first():
            return
        while (asked := window.to_ask())[0]:
            window.found(fetch(asked[0], wait=asked[1]))
        yield window.take()


async def amap_in_order(
    push: Callable[[Iterable[Any], PushOptions], Awaitable[list[Any]]],
    fetch: Callable[..., Awaitable[Mapping[str, Reply]]],
    window: Window,
    options: PushOptions,
) -> AsyncIterator[Any]:
    """Yield answers in the order of their items."""
    while True:
        if more := window.to_push():
            window.pushed(await push(more, options))
        if not window.begin_first():
            return
        while (asked := window.to_ask())[0]:
            window.found(await fetch(asked[0], wait=asked[1]))
        yield window.take()
