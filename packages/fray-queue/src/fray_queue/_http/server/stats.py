"""What the server tells about its queues: counts, rates, metrics."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fray.backend import queue_page
from fray_queue._http.server.rates import Rates
from fray_queue._sqlite import looking
from fray_queue._sqlite.rows import QueueRow
from fray_queue._sqlite.store import QueueStore

_METRICS = {
    "pending": ("gauge", "Items that a pop could take now."),
    "in_flight": ("gauge", "Items that are leased or delayed."),
    "dead": ("gauge", "Dead letters."),
    "bytes": ("gauge", "Size of the payloads, those of dead letters too."),
    "oldest_seconds": ("gauge", "Age of the oldest item."),
    "pushed_total": ("counter", "Items stored since the server started."),
    "popped_total": ("counter", "Leases given since the server started."),
    "done_total": ("counter", "Items finished since the server started."),
}


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


class _Counted(NamedTuple):
    """A queue by its counters, as they are kept: what expired meanwhile is not looked for."""

    name: str
    pending: int
    in_flight: int
    dead: int


def page_of_stats(store: QueueStore, query: queue_page.Query) -> dict[str, Any]:
    """Return what the store knows of the queues of one page, and how many there are."""
    counted = [_Counted(row.name, row.fresh + row.returned, row.held, row.dead) for row in store.queues()]
    shown, page, counts = queue_page.wanted_queues(counted, query)
    queues = [stored_stats(store, store.queue(each.name)) for each in shown]
    return {"queues": queues, "page": page, "counts": counts}


def with_rates(stats: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """Add what went through a queue."""
    return {
        **stats,
        "pushed_total": rates.pushed,
        "popped_total": rates.popped,
        "done_total": rates.done,
        "plots": rates.plots(),
    }


def metrics_text(stats: Sequence[Mapping[str, Any]]) -> str:
    """Write the counts as Prometheus reads them; names of queues need no escaping."""
    lines: list[str] = []
    for name, (kind, text) in _METRICS.items():
        lines += [f"# HELP fray_queue_{name} {text}", f"# TYPE fray_queue_{name} {kind}"]
        lines += [f'fray_queue_{name}{{queue="{each["name"]}"}} {each[name]}' for each in stats]
    return "\n".join(lines) + "\n"
