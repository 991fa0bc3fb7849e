"""What a server answered to requests that may be repeated; kept in the transaction of what they changed."""

import json
import time
from typing import Any

from fray_queue._sqlite.store import QueueStore


def keep(store: QueueStore, slot: str, number: int, reply: dict[str, Any]) -> None:
    """Keep the newest answer of a slot."""
    row = (slot, number, time.time(), json.dumps(reply))
    store.file.connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)


def has(store: QueueStore, slot: str, number: int) -> bool:
    """Return whether this request of a slot, or a later one, has an answer."""
    kept = store.file.connection.execute(
        "SELECT 1 FROM answers WHERE slot = ? AND number >= ?", (slot, number)
    ).get
    return bool(kept)


def load(store: QueueStore) -> list[tuple[str, int, Any]]:
    """Return slots with their numbers and replies."""
    rows: list[Any] = store.file.connection.execute("SELECT slot, number, reply FROM answers").fetchall()
    return [(slot, number, json.loads(reply)) for slot, number, reply in rows]


def forget(store: QueueStore, seconds: float) -> None:
    """Delete answers that are no longer requested."""
    store.file.connection.execute("DELETE FROM answers WHERE at < ?", (time.time() - seconds,))
