"""What the parts of a store need of it: its file, and what is done to a queue at every call."""

from collections.abc import Iterable
from typing import Protocol

from fray_queue._sqlite.connection import StoreFile
from fray_queue._sqlite.rows import QueueRow


class WorkingStore(Protocol):
    """A store in whose transaction a part of it works."""

    @property
    def file(self) -> StoreFile: ...

    def append(self, queue: QueueRow, records: Iterable[tuple[str | None, bytes]]) -> list[str]:
        """Store plain items at the end of the line."""

    def sweep(self, queue: QueueRow, now: float) -> None:
        """Have what ran out wait again, and give up what is over."""

    def note_reply(self, queue: QueueRow, row: int | None) -> None:
        """Note that an item was answered."""
