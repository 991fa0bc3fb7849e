"""SqliteQueue keeps the contract, among processes too, and what it stores lasts."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from fray.testing.queue import (
    MakeQueue,
    ManualClock,
    QueueContract,
    SharedQueueContract,
    UnreadablePromises,
    check_queue_machine,
)
from fray_queue import SqliteQueue


class _Sqlite:
    BACKEND = "sqlite"

    @pytest.fixture
    def make_queue(self, clock: ManualClock, tmp_path: Path) -> MakeQueue:
        numbers = itertools.count()
        return lambda **options: SqliteQueue(tmp_path / f"q{next(numbers)}.db", clock=clock, **options)


class TestSqliteQueue(_Sqlite, QueueContract):
    pass


class TestSharedSqliteQueue(_Sqlite, SharedQueueContract):
    pass


class TestUnreadableInSqliteQueue(_Sqlite, UnreadablePromises):
    pass


def test_every_history_agrees_with_the_model(tmp_path: Path) -> None:
    clock = ManualClock()
    numbers = itertools.count()

    def make_queue(**options: Any) -> Any:
        return SqliteQueue(tmp_path / "q.db", f"q{next(numbers)}", clock=clock, **options)

    check_queue_machine(make_queue, clock, examples=60, steps=40)
