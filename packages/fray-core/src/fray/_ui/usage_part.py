"""What the replicas of a job used over time, as pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from fray._cli.shared import in_words
from fray._cli.usage import samples_of, with_cores
from fray._ui.listing import Query
from fray._ui.markup import Html, join, tag
from fray._ui.pictures import Line, chart
from fray._ui.shared_calls import Looked
from fray._ui.shell import empty, failure, loading
from fray._values.errors import UnsupportedError
from fray._values.usage import UsageSample

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray_resources import ResourceConfig

_AT_ONCE = 8  # replicas


@dataclass(frozen=True)
class UsageView:
    """What the pictures show."""

    samples: Sequence[UsageSample]
    asked: "ResourceConfig | None"


def look_at_usage(cluster: "Cluster", job_id: str) -> UsageView:
    """Read what a job used, and what it requested."""
    return UsageView(samples_of(cluster, job_id), cluster.poll(job_id).resources)


def usage_part(looked: Looked[UsageView], query: Query) -> Html:
    """Return two pictures for each replica: memory, and cores that were busy."""
    if looked.loading:
        return loading("usage")
    if looked.value is None:
        if isinstance(looked.error, UnsupportedError):
            return empty(str(looked.error))
        return failure(looked, "usage")
    view = looked.value
    if not view.samples:
        return join(
            [
                failure(looked, "usage"),
                empty("Nothing was measured: attempts are, from their first second on."),
            ]
        )
    replicas = [list(found) for _, found in groupby(view.samples, key=lambda sample: sample.replica)]
    first = min(query.number("replicas"), (len(replicas) - 1) // _AT_ONCE * _AT_ONCE)
    pictures = [_charts(found, view.asked) for found in replicas[first : first + _AT_ONCE]]
    return join(
        [
            failure(looked, "usage"),
            tag("div", *pictures, class_="pairs"),
            _steps(len(replicas), first, query),
        ]
    )


def _charts(samples: Sequence[UsageSample], asked: "ResourceConfig | None") -> Html:
    span = samples[0].time, samples[-1].time
    memory: list[Line] = []
    cores: list[Line] = []
    highest = 0.0
    for _, attempt in groupby(with_cores(samples), key=lambda each: each[0].attempt):
        rows = list(attempt)
        memory.append(Line([(sample.time, float(sample.memory)) for sample, _ in rows]))
        cores.append(Line([(sample.time, busy) for sample, busy in rows[1:]]))
        highest = max([highest, *(busy for _, busy in rows)])
    name = f"replica {samples[0].replica}"
    most = max(sample.memory for sample in samples)
    room = None if asked is None else float(asked.ram_bytes)
    told = in_words(most), "" if room is None else in_words(int(room))
    wanted = None if asked is None else float(asked.cpu)
    busy = (
        f"{highest:.2f} cores",
        "" if wanted is None else f"{wanted:g} {'core' if wanted == 1 else 'cores'}",
    )
    return tag(
        "div",
        chart(f"Memory of {name}", memory, span, limit=_near(room, most), told=told),
        chart(f"CPU of {name}", cores, span, limit=_near(wanted, highest), told=busy),
        class_="charts",
    )


def _near(limit: float | None, highest: float) -> float | None:
    """Return what was requested, where a line of it leaves the used amount visible."""
    return limit if limit is not None and highest >= 0.2 * limit else None


def _steps(count: int, first: int, query: Query) -> Html | None:
    if count <= _AT_ONCE:
        return None
    steps = []
    if first > 0:
        steps.append(tag("a", "Previous", href=query.link(replicas=first - _AT_ONCE or None)))
    if first + _AT_ONCE < count:
        steps.append(tag("a", "Next", href=query.link(replicas=first + _AT_ONCE)))
    last = min(first + _AT_ONCE, count)
    told = tag("span", f"{first + 1} to {last} of {count} replicas", class_="count")
    return tag("nav", told, *steps, class_="pager", aria_label="Pages of replicas")
