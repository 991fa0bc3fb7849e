"""StoredQueue keeps the contract over any store; here the plainest there is."""

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from fray.queue import ItemStore, StoredItem, StoredQueue
from fray.testing.queue import MakeQueue, ManualClock, QueueContract, UnreadablePromises, check_queue_machine


class DictStore(ItemStore):
    """A dict keeps the place of a key that it has, and puts a new one last."""

    def __init__(self) -> None:
        self.rows: dict[str, StoredItem] = {}

    def save(self, items: Sequence[StoredItem]) -> None:
        self.rows.update((item.item_id, item) for item in items)

    def find(self, item_id: str) -> StoredItem | None:
        return self.rows.get(item_id)

    def delete(self, item_id: str) -> None:
        del self.rows[item_id]

    def waiting(self, by: float, limit: int) -> list[StoredItem]:
        return [item for item in self.rows.values() if not item.dead and item.until <= by][:limit]

    def lapsed(self, by: float, attempts: int) -> list[StoredItem]:
        return [item for item in self.waiting(by, len(self.rows)) if item.attempt >= attempts]

    def dead(self) -> list[StoredItem]:
        return [item for item in self.rows.values() if item.dead]

    def count(self, by: float) -> int:
        return len(self.waiting(by, len(self.rows)))


class DictQueue(StoredQueue[Any]):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._store, self._lock = DictStore(), threading.Lock()

    @contextmanager
    def _transaction(self) -> Iterator[ItemStore]:
        with self._lock:
            yield self._store


class TestStoredQueue(UnreadablePromises, QueueContract):
    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        return lambda **options: DictQueue(clock=clock, **options)


def test_items_that_an_older_release_pickled_have_no_push_time() -> None:
    item = StoredItem("id", b"payload", attempt=2, pushed_at=5.0)
    older = StoredItem.__new__(StoredItem)
    state: Any = item.__getstate__()
    older.__setstate__(state[:-1])
    assert (older.item_id, older.attempt, older.pushed_at) == ("id", 2, None)
    assert pickle.loads(pickle.dumps(item)) == item


def test_every_history_agrees_with_the_model() -> None:
    clock = ManualClock()
    check_queue_machine(
        lambda **options: DictQueue(clock=clock, **options), clock, pickles=True, examples=200
    )
