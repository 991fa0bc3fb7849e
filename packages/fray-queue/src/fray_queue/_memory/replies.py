"""The answers of a queue in memory, until they are fetched or their time is over.

No lock, thread or clock: the caller holds its lock and brings the time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from fray.queue import Reply
from fray_queue._checks import KEPT_AFTER_FETCH


@dataclass(slots=True, eq=False)
class _Kept:
    reply: Reply
    until: float
    askers: int


class Replies:
    """Answers by item id.

    Args:
        settled: Is called with the id of each item that is answered.
    """

    def __init__(self, settled: Callable[[str], None]) -> None:
        self._settled = settled
        self._kept: dict[str, _Kept] = {}
        self._ends: list[tuple[float, str]] = []  # a heap; one whose answer is kept for another time is stale

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, reply: Reply, until: float, askers: int) -> None:
        """Keep an answer until then."""
        self._kept[reply.item_id] = _Kept(reply, until, askers)
        heappush(self._ends, (until, reply.item_id))
        self._settled(reply.item_id)

    def fetch(self, item_id: str, now: float) -> Reply | None:
        """Return an answer; after the last that fetched it, it is kept for a minute."""
        kept = self._kept.get(item_id)
        if kept is None:
            return None
        kept.askers -= 1
        if kept.askers <= 0 and kept.until > now + KEPT_AFTER_FETCH:
            kept.until = now + KEPT_AFTER_FETCH
            heappush(self._ends, (kept.until, item_id))
        return kept.reply

    def gone(self, item_id: str) -> None:
        """Note that an item was removed: the calls that wait for it end."""
        self._settled(item_id)

    def forget(self, item_id: str) -> None:
        """Take an answer back: the item is in line again."""
        self._kept.pop(item_id, None)

    def drop(self, now: float) -> None:
        """Drop the answers whose time is over."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            until, item_id = heappop(ends)
            kept = self._kept.get(item_id)
            if kept is not None and kept.until == until:
                del self._kept[item_id]
