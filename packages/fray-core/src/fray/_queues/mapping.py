"""Items pushed and answers yielded in one order, with a bound on what is under way."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fray._contracts.replies import Reply
from fray._values.checks import check_count, check_seconds
from fray._values.errors import GetTimeoutError
from fray._values.push_options import PushOptions

_LONGEST_WAIT = 600.0  # seconds of one question to the queue
_MOST_ASKED = 500  # items in one question


def map_in_order(
    push: Callable[[Iterable[Any], PushOptions], list[Any]],
    fetch: Callable[..., Mapping[str, Reply]],
    items: Iterable[Any],
    options: PushOptions,
    in_flight: int,
    timeout: float | None,
) -> Iterator[Any]:
    """Check the arguments, and return the answers in the order of their items."""
    check_count("in_flight", in_flight, 1)
    if timeout is not None:
        check_seconds("timeout", timeout)
    return _answers(push, fetch, iter(items), options, in_flight, timeout)


def _answers(
    push: Callable[[Iterable[Any], PushOptions], list[Any]],
    fetch: Callable[..., Mapping[str, Reply]],
    items: Iterator[Any],
    options: PushOptions,
    in_flight: int,
    timeout: float | None,
) -> Iterator[Any]:
    waiting: deque[str] = deque()
    found: dict[str, Reply] = {}
    while True:
        # Half of them at once: a request for each item would cost more than the item.
        if len(waiting) <= in_flight // 2 and (more := list(islice(items, in_flight - len(waiting)))):
            waiting.extend(map(str, push(more, options)))
        if not waiting:
            return
        _await_first(waiting, found, fetch, timeout)
        yield found.pop(waiting.popleft()).get()


def _await_first(
    waiting: deque[str],
    found: dict[str, Reply],
    fetch: Callable[..., Mapping[str, Reply]],
    timeout: float | None,
) -> None:
    """Have the answer to the first item, and those of others that are there."""
    end = None if timeout is None else time.monotonic() + timeout
    while waiting[0] not in found:
        left = _LONGEST_WAIT if end is None else max(0.0, end - time.monotonic())
        asked = list(islice((item_id for item_id in waiting if item_id not in found), _MOST_ASKED))
        more = fetch(asked, wait=min(left, _LONGEST_WAIT))
        found.update(more)
        if not more and end is not None and time.monotonic() >= end:
            raise GetTimeoutError(
                f"item {waiting[0]!r} has no answer after {timeout:g} s; "
                f"{len(waiting)} items of this map are in the queue"
            )
