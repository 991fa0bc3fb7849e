"""What the server reports about its queues: counts, rates, metrics."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fray_queue._http.server.rates import Rates

_METRICS = {
    "pending": ("gauge", "Items that a pop could take now."),
    "in_flight": ("gauge", "Items that are leased or delayed."),
    "dead": ("gauge", "Dead letters."),
    "bytes": ("gauge", "Size of the payloads, those of dead letters too."),
    "oldest_seconds": ("gauge", "Age of the oldest item."),
    "pushed_total": ("counter", "Items stored since the server started."),
    "popped_total": ("counter", "Leases given since the server started."),
    "done_total": ("counter", "Items finished since the server started."),
    "wait_seconds_total": (
        "counter",
        "Seconds from pushes to those leases, added up.",
    ),
}


class Counted(NamedTuple):
    """A queue by its counters, as they are kept: what expired meanwhile is not looked for."""

    name: str
    pending: int
    in_flight: int
    dead: int


def with_rates(stats: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """Add what went through a queue."""
    return {
        **stats,
        "pushed_total": rates.pushed,
        "popped_total": rates.popped,
        "done_total": rates.done,
        "wait_seconds_total": rates.waited,
        "plots": rates.plots(),
    }


def metrics_text(stats: Sequence[Mapping[str, Any]]) -> str:
    """Write the counts as Prometheus reads them; names of queues need no escaping."""
    lines: list[str] = []
    for name, (kind, text) in _METRICS.items():
        lines += [f"# HELP fray_queue_{name} {text}", f"# TYPE fray_queue_{name} {kind}"]
        known = (each for each in stats if each[name] is not None)
        lines += [f'fray_queue_{name}{{queue="{each["name"]}"}} {each[name]}' for each in known]
    return "\n".join(lines) + "\n"
