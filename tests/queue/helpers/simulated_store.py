"""A store that crashes and stalls its clients and loses answers as a seed wants, and what really happened."""

import random
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fray_queue.testing import DONE, LEASE, ItemAddress, Record, Slot, decode_batch, decode_record

LEASE_SECONDS = 10.0
BUCKET = "000000000001-000000000000"


class Crash(BaseException):
    """The client is gone."""


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """The store's files, the time, the faults, and what really happened."""

    def __init__(self, seed: int, *, skew: float, clients: int) -> None:
        self.chance = random.Random(seed)
        self.now = 1000.0
        self.files: dict[str, bytes] = {}
        self.late: list[Callable[[], object]] = []
        self.requests = self.crashes = self.stalls = self.lost_answers = 0
        self.skews = [self.chance.uniform(-skew / 2, skew / 2) for _ in range(clients)]
        self.stalled = [0.0] * clients
        self.holder: dict[str, str] = {}  # item -> nonce of the newest lease that was written
        self.believed: dict[
            tuple[int, str], float
        ] = {}  # (client, item) -> true time at which its lease ends
        self.done: set[str] = set()  # items whose `done` was accepted
        self.finisher: dict[str, str] = {}  # item -> nonce of the lease that it was finished under
        self.finishing: set[str] = set()  # items that a holder wrote `done` for, answered or not
        self.slots: dict[tuple[str, int], Slot] = {}  # of batches, as of the newest record
        self.taken = self.pushed = 0
        self.stored: set[str] = set()  # items whose push was answered

    def live(self) -> int:
        """Count the items that nobody wrote `done` for."""
        return len(self.stored - self.finishing)

    def clock(self, client: int) -> Callable[[], float]:
        return lambda: self.now + self.skews[client]

    def create(self, path: str, data: bytes) -> bool:
        if path in self.files:
            return False
        self.files[path] = data
        if "~" in path:
            self._note_file(path, data)
        return True

    def _note_file(self, path: str, data: bytes) -> None:
        item = path.partition("~")[0]
        address = ItemAddress(*item.split("/"))
        if not address.count:
            self._note(item, item, decode_record(data, path))
            return
        for index, slot in enumerate(decode_batch(data, path, address.count)):
            known = self.slots.get((item, index))
            if slot.record is not None and slot != known:
                self.slots[item, index] = slot
                self._note(item, f"{item}-{index}", slot.record)

    def _note(self, file: str, item: str, record: Record) -> None:
        if file not in self.files:
            return  # it is finished and removed; this is the start of no history
        if record.kind == LEASE:
            self.holder[item] = record.lease_nonce
        elif record.kind == DONE:
            self.finishing.add(item)
            self.finisher[item] = self.holder[item]


class SimStore:
    """One client's view of the world; every method is one request or more."""

    name, may_lose = "simulation", False

    def __init__(self, world: World, client: int, step: Callable[[int], None]) -> None:
        self.world, self.client, self.step = world, client, step

    def _request(self, effect: Callable[[], Any]) -> Any:
        self.step(self.client)
        world = self.world
        world.requests += 1
        fault = world.chance.random()
        if fault < 0.02:
            world.crashes += 1
            if fault < 0.007:
                effect()
            elif fault < 0.014:
                world.late.append(effect)
            raise Crash
        if fault < 0.05:
            result = effect() if fault < 0.035 else None
            self._pause()
            return result if fault < 0.035 else effect()
        return effect()

    def create(self, path: str, data: bytes) -> bool:
        won: bool = self._request(lambda: self.world.create(path, data))
        if won and self.world.chance.random() < 0.03:
            self.world.lost_answers += 1
            return False  # the first answer got lost, and the repeated request met its own file
        return won

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        for path, data in files:
            self._request(partial(self.world.create, path, data))

    def write(self, path: str, data: bytes) -> None:
        self._request(lambda: self.world.files.__setitem__(path, data))

    def read(self, path: str) -> bytes | None:
        data: bytes | None = self._request(lambda: self.world.files.get(path))
        if path.endswith("+") and self.world.chance.random() < 0.2:
            self._pause()
        return data

    def _pause(self) -> None:
        """Stall with an answer in hand: what it says of a lease's end may be old on waking."""
        self.world.stalls += 1
        self.world.stalled[self.client] = self.world.now + self.world.chance.uniform(0, 2 * LEASE_SECONDS)
        self.step(self.client)

    def exists(self, path: str) -> bool:
        found: bool = self._request(lambda: path in self.world.files)
        return found

    def names(self, folder: str) -> list[str]:
        first = self._request(lambda: [name for name in self._names(folder) if _page(name) == 0])
        self._between_pages()
        second = self._request(lambda: [name for name in self._names(folder) if _page(name) == 1])
        return sorted({*first, *second})

    def tree(self) -> dict[str, list[str]]:
        return {name: self.names(name) for name in self.names("")}

    def _between_pages(self) -> None:
        """Where a slow listing may hang."""

    def _names(self, folder: str) -> list[str]:
        if not folder:
            return sorted({path.partition("/")[0] for path in self.world.files})
        return sorted(path.partition("/")[2] for path in self.world.files if path.startswith(f"{folder}/"))

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._request(partial(self.world.files.pop, path, None))

    def remove_if_empty(self, folder: str) -> None:
        pass  # as on an object store: there are no folders


def _page(name: str) -> int:
    # Payload and records of one item fall on different pages: nothing says that a listing is a snapshot.
    return zlib.crc32(name.encode()) & 1
