"""What a server needs of where its queues are: an SQLite store, or an engine that others run.

All calls are made in the event loop's thread. One that changes something takes the request's idempotency
key, and returns the answer to the client: a store may keep that, and answer a repetition with it. Of a queue
that is not there every call raises a QueueNotFoundError.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from fray.backend import PushOptions, queue_page
from fray.queue import Reply
from fray_queue._http.server.traffic import Traffic
from fray_queue._items import EncodedReply, Settings, Taken

Told = dict[str, Any]
"""The answer to a client, as JSON has it."""
What = Literal["items", "room", "answers"]


class Key(NamedTuple):
    """A request's idempotency key: its connection's name, and its number on that."""

    slot: str
    number: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an item is given back.

    Args:
        error: What failed the attempt, for the history; `pickled` is the same for the producer.
        unreadable: Why its taker could not unpickle it: then it is set aside.
    """

    error: str | None = None
    pickled: bytes | None = None
    unreadable: str | None = None


class ServerStore(Protocol):
    """The queues that a server hands out."""

    def check(self) -> None:
        """Raise what keeps the store from being used, if anything does."""

    def answers(self) -> Sequence[tuple[str, int, Told]]:
        """Return what was kept of requests that may be repeated: slot, number and the answer."""

    def watching(self, name: str, what: What, item_ids: Sequence[str] = ()) -> AbstractContextManager[None]:
        """Have the queue's `Traffic` woken, while the block runs, by what others change in the store."""

    async def create(self, name: str, settings: Settings, key: Key | None) -> None: ...

    async def delete(self, name: str, key: Key | None) -> None: ...

    async def push(self, name: str, records: Sequence[tuple[str, bytes]], key: Key | None) -> Told:
        """Store plain payloads: `stored` is their number, and `ids` theirs where they are not as given."""

    async def submit(
        self, name: str, payloads: Sequence[bytes], options: PushOptions, key: Key | None
    ) -> Told:
        """Store payloads under options; `ids` are theirs, or those of items with their keys."""

    async def has_room(self, name: str, count: int) -> tuple[bool, float | None]:
        """Return whether so many items fit, and in how many seconds that may change by itself."""

    async def pop(
        self, name: str, n: int, lease_timeout: float, key: Key | None, *, answers: bool, woken: bool
    ) -> tuple[list[Taken], float | None]:
        """Lease items in line; where there is none, return in how many seconds one may become free.

        Args:
            answers: Whether the client can give answers.
            woken: Whether the client waited, and was woken.
        """

    async def held(self, name: str, lease_ids: Sequence[str], key: Key | None) -> list[Taken]:
        """Return what a pop of this key leased and still holds."""

    async def done(
        self, name: str, lease_ids: Sequence[str], answers: Sequence[EncodedReply | None], key: Key | None
    ) -> Told:
        """Finish items; `refused` are the leases that are not good."""

    async def release(
        self, name: str, lease_id: str, delay: float, failure: Failure, key: Key | None
    ) -> Told: ...

    async def extend(self, name: str, lease_id: str, lease_timeout: float, key: Key | None) -> Told:
        """Hold an item longer; `expires_at` is the new end."""

    async def extend_many(
        self, name: str, lease_ids: Sequence[str], lease_timeout: float, key: Key | None
    ) -> Told:
        """Hold items longer; `expires_at` has each one's new end, None for one that is not good."""

    async def give_back(self, name: str, lease_ids: Sequence[str], key: Key | None) -> Told:
        """Give back items that were not worked on; `refused` are leases that were not good, where known."""

    async def fetch(
        self, name: str, item_ids: Sequence[str], key: Key | None
    ) -> tuple[list[Reply], float | None]:
        """Return what became of items, and in how many seconds more may be known by itself."""

    async def peek(self, name: str) -> Taken | None: ...

    async def dead(
        self, name: str, after: int, most: int | None, *, payloads: bool = False
    ) -> tuple[list[Taken], bool]:
        """Return dead letters behind a place in line, and whether there are more.

        Args:
            payloads: Whether to read them too; then no more than one answer may hold.
        """

    async def requeue(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> Told: ...

    async def purge(self, name: str, key: Key | None) -> Told: ...

    async def purge_dead(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> Told: ...

    async def stats(self, name: str) -> Told:
        """Return counts and settings of a queue."""

    async def all_stats(self) -> list[Told]:
        """Return the stats of each queue, by name."""

    async def page_of_stats(self, query: queue_page.Query) -> Told:
        """Return the stats of the queues of one page, and how many there are."""

    async def sizes(self, used: Collection[str]) -> list[tuple[str, int]]:
        """Return how many items queues have that are not dead: at least of those that are used now."""

    async def every_second(self, seconds: int) -> None:
        """Do what is due; `seconds` counts the calls."""

    async def close(self) -> None: ...


OpenStore = Callable[[Callable[[str], Traffic]], ServerStore]
"""Opens a store for a server, given what returns the traffic of a queue."""


def leases_told(name: str, taken: Sequence[Taken]) -> Told:
    """Return what is kept of an answer that leased items: a repetition shows them as they are then."""
    return {"queue": name, "leases": [each.lease_id for each in taken]}


def no_answers(name: str) -> str:
    """Explain why a client of the first release gets no items."""
    return (
        f"queue {name!r} has items whose pushers wait for answers, and this client is of a release that can "
        "give none; update fray-queue where it runs"
    )
