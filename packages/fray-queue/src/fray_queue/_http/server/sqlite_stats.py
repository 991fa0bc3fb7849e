"""What an SQLite store reports about a server's queues."""

from typing import Any

from fray.backend import queue_page
from fray_queue._http.server.stats import Counted
from fray_queue._sqlite import looking
from fray_queue._sqlite.rows import QueueRow
from fray_queue._sqlite.store import QueueStore


def stored_stats(store: QueueStore, queue: QueueRow) -> dict[str, Any]:
    """Return what the store knows of a queue."""
    counts = looking.counts(store, queue)
    pushed_at = looking.oldest(store, queue)
    now = store.file.clock.now() + store.file.clock.offset()
    return {
        "name": queue.name,
        "max_attempts": queue.max_attempts,
        "max_size": queue.max_size,
        "max_dead": queue.max_dead,
        "dead_dropped": queue.dropped,
        "size": counts.size,
        "pending": counts.pending,
        "in_flight": counts.in_flight,
        "dead": counts.dead,
        "bytes": counts.bytes,
        "durable": not store.file.in_memory,
        "oldest_seconds": max(0.0, now - pushed_at) if pushed_at is not None else 0.0,
    }


def all_stats(store: QueueStore) -> list[dict[str, Any]]:
    """Return what the store knows of each queue, by name."""
    return [stored_stats(store, store.queue(name)) for name in store.names()]


def page_of_stats(store: QueueStore, query: queue_page.Query) -> dict[str, Any]:
    """Return what the store knows of the queues of one page, and how many there are."""
    counted = [Counted(row.name, row.fresh + row.returned, row.held, row.dead) for row in store.queues()]
    shown, page, counts = queue_page.wanted_queues(counted, query)
    queues = [stored_stats(store, store.queue(each.name)) for each in shown]
    return {"queues": queues, "page": page, "counts": counts}
