"""Pictures, as SVG made here; colours are classes of the style sheet, titles are for screen readers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fray._ui.markup import Html, join, tag
from fray._values.job_states import JobInfo, TaskStatus
from fray._values.words import duration

_WIDTH = 1000.0  # of a time line, in units of its own
_ROW = 22.0
_MOST_ROWS = 64
_MOST_OF_A_ROW = 100  # attempts; the latest
_CHART = (320.0, 84.0)
_ORDER = ("succeeded", "running", "pending", "failed", "stopped")


@dataclass(frozen=True)
class Line:
    """A line of a chart: times and values, in order."""

    points: Sequence[tuple[float, float]]


def shares(counts: Mapping[str, int]) -> Html:
    """Return a bar of how many have each status; text beside it says the same."""
    total = sum(counts.values()) or 1
    at, parts = 0.0, []
    for status in _ORDER:
        wide = 100.0 * counts.get(status, 0) / total
        if wide:
            parts.append(_rectangle(at, 0, wide, 8, f"fill {status}"))
        at += wide
    return _svg(parts, 100, 8, "shares", None)


def timeline(info: JobInfo, now: float) -> Html:
    """Return when each attempt of each replica ran, a row each; the table below it says the same."""
    start = info.submitted_at if info.submitted_at is not None else info.started_at
    if start is None:
        return Html("")
    span = max((info.finished_at or now) - start, 0.001)
    rows = info.tasks[:_MOST_ROWS]
    parts: list[Html] = []
    for number, task in enumerate(rows):
        top = number * _ROW
        parts.append(_rectangle(0, top + 1, _WIDTH, _ROW - 2, "lane"))
        for attempt in (*task.previous, task)[-_MOST_OF_A_ROW:]:
            parts += _attempt(attempt, info, start, span, now, top)
    height = len(rows) * _ROW
    numbers = [tag("span", f"replica {task.replica}") for task in rows]
    svg = _svg(
        parts, _WIDTH, height, "timeline", f"Time line of {len(rows)} replicas; the table has the same"
    )
    axis = tag("div", tag("span", "launched"), tag("span", f"+{duration(0.0, span)}"), class_="axis")
    more = len(info.tasks) - len(rows)
    rest = tag("p", f"and {more} replicas more, in the table", class_="count") if more else None
    drawn = tag("div", svg, axis, class_="drawn")
    return tag(
        "div", tag("div", *numbers, class_="lanes", aria_hidden="true"), drawn, rest, class_="timeline-box"
    )


def _attempt(
    task: TaskStatus, info: JobInfo, start: float, span: float, now: float, top: float
) -> list[Html]:
    if task.started_at is None:
        return []
    end = task.finished_at if task.finished_at is not None else (info.finished_at or now)
    left = _WIDTH * (task.started_at - start) / span
    wide = max(2.0, _WIDTH * (end - task.started_at) / span)
    said = f"attempt {task.attempt}: {task.status}"
    if task.reason is not None:
        said += f", {task.reason.replace('_', ' ')}"
    title = tag("title", f"{said}, ran {duration(task.started_at, end)}")
    return [_rectangle(min(left, _WIDTH - 2), top + 3, wide, _ROW - 6, f"fill {task.status}", title)]


def chart(
    title: str,
    lines: Sequence[Line],
    span: tuple[float, float],
    *,
    limit: float | None = None,
    told: Sequence[str] = ("", ""),
) -> Html:
    """Return values over time, with the highest one written beside it.

    Args:
        span: The first and the last time.
        limit: What was requested: a broken line.
        told: The highest value in words, and that of the limit.
    """
    width, height = _CHART
    highest = max((value for line in lines for _, value in line.points), default=0.0)
    top = max(highest, limit or 0.0) * 1.08 or 1.0
    first, last = span
    scale = width / max(last - first, 0.001)
    parts = [_line("axis", 0, height - 0.5, width, height - 0.5)]
    if limit is not None:
        parts.append(_line("limit", 0, height * (1 - limit / top), width, height * (1 - limit / top)))
    for line in lines:
        points = " ".join(
            f"{(when - first) * scale:.1f},{height - value / top * (height - 2) - 1:.1f}"
            for when, value in line.points
        )
        if len(line.points) == 1:
            points += f" {min(width, (line.points[0][0] - first) * scale + 2):.1f},{points.partition(',')[2]}"
        parts.append(tag("polyline", points=points))
    asked = f"; {told[1]} was asked for" if limit is not None else ""
    label = f"{title} over {duration(first, last)}: {told[0]} at the most{asked}"
    words = tag("figcaption", tag("span", title), tag("b", told[0]), tag("span", asked.removeprefix("; ")))
    return tag("figure", words, _svg(parts, width, height, "chart", label), class_="chart-box")


def sparkline(values: Sequence[float]) -> Html:
    """Return a small line; what it ends with stands beside it as text."""
    top = max([1.0, *values])
    step = 100.0 / max(1, len(values) - 1)
    points = " ".join(f"{at * step:.1f},{27 - 25 * value / top:.1f}" for at, value in enumerate(values))
    return _svg([tag("polyline", points=points)], 100, 28, "spark", None)


def _svg(parts: Sequence[Html], width: float, height: float, kind: str, label: str | None) -> Html:
    # Units of its own, stretched to the place that the style sheet gives it.
    inner = [tag("title", label)] if label else []
    box = (
        f'viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" width="{width:g}" height="{height:g}"'
    )
    role = 'role="img"' if label else 'aria-hidden="true"'
    return Html(f'<svg class="{kind}" {box} {role}>{join([*inner, *parts])}</svg>')


def _rectangle(left: float, top: float, width: float, height: float, kind: str, *inside: Html) -> Html:
    numbers = {"x": f"{left:.2f}", "y": f"{top:.2f}", "width": f"{width:.2f}", "height": f"{height:.2f}"}
    return tag("rect", *inside, class_=kind, **numbers)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return tag("line", class_=kind, x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")
