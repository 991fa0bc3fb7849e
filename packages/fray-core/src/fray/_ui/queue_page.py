"""The pages of queues, for `fray ui` and for a queue server's own: HTML of what the server returns as JSON.

Addresses of what changes something are those of the server, behind `base`: `fray ui` hands them on.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fray._ui.listing import Column, choices, hidden_inputs, page_of, pager, row, search_field, table
from fray._ui.listing import Query as Query
from fray._ui.markup import UNKNOWN, Html, join, stranger, tag
from fray._ui.pictures import Line, chart, sparkline
from fray._ui.shared_calls import Looked as Looked
from fray._ui.shell import ASSETS as ASSETS
from fray._ui.shell import HEADERS as HEADERS
from fray._ui.shell import action, document, empty, failure, loading, part
from fray._ui.shell import asset as asset
from fray._values.words import duration, in_words

PER_PAGE = 100
"""Queues, and dead letters, of one page."""
SORTS = ("name", "-name", "pending", "-pending", "in_flight", "-in_flight", "dead", "-dead")
KINDS = ("", "waiting", "dead")
LINKS = (("./", "Queues"),)
_LAST = 10  # seconds that a rate is of
_LONGEST_ERROR = 2000
_QUEUES = (
    Column("queue", "name", "name"),
    Column("waiting", "pending", "number"),
    Column("in flight", "in_flight", "number"),
    Column("dead", "dead", "number"),
    Column("oldest", None, "number"),
    Column("pushed / s", None, "number"),
    Column("done / s", None, "number"),
    Column("depth", None, "plot"),
)
_LETTERS = (
    Column("item", None, "name item"),
    Column("attempts", None, "number"),
    Column("what happened", None, "message"),
    Column("size", None, "number"),
    Column("", None, "acts"),
)


def wanted_queues(queues: Iterable[Any], query: Query) -> tuple[list[Any], int, dict[str, int]]:
    """Choose the queues of one page, by their counters.

    Args:
        queues: Each with `name`, `pending`, `in_flight` and `dead`.

    Returns:
        They; which page it is; how many there are, fit, have items that wait, and have dead letters.
    """
    words = query.text("q").casefold().split()
    everything = list(queues)
    named = [each for each in everything if all(word in each.name.casefold() for word in words)]
    kinds = {
        "waiting": [each for each in named if each.pending],
        "dead": [each for each in named if each.dead],
    }
    found = kinds.get(query.choice("only", KINDS), named)
    sort = query.choice("sort", SORTS)
    found.sort(key=lambda each: each.name)
    if sort != "name":
        found.sort(key=lambda each: getattr(each, sort.removeprefix("-")), reverse=sort.startswith("-"))
    counts = {"total": len(everything), "named": len(named), "found": len(found)}
    counts |= {kind: len(some) for kind, some in kinds.items()}
    shown, number = page_of(found, query.number("page"))
    return list(shown), number, counts


def queues_document(query: Query, first: Html | None, **around: Any) -> str:
    """Return the page of all queues.

    Args:
        first: What it shows at first; None while that is not known.
        around: What the document has beside; without, it is that of one server.
    """
    form = _filter(query)
    body = tag("h1", "Queues"), form, part("part/queues", "Queues", first)
    return document("Queues", *body, **{"links": LINKS, "current": "./", **around})


def queue_document(query: Query, **around: Any) -> str:
    """Return the page of one queue."""
    name = query.text("name")
    above = query.link(around.pop("above", "./"), name=None, after=None)
    body = (
        tag("p", tag("a", "Queues", href=above), " /", class_="path"),
        tag("h1", stranger(name)),
        part("part/queue", "Counts"),
        tag("h2", "Dead letters"),
        part("part/letters", "Dead letters"),
    )
    return document(f"{name} - queue", *body, **{"links": LINKS, "current": "", **around})


def queues_part(looked: Looked[dict[str, Any]], query: Query) -> Html:
    """Return the queues of a page."""
    if looked.loading:
        return loading("queues")
    problem = failure(looked, "list of queues")
    if looked.value is None:
        return problem
    counts, queues, number = looked.value["counts"], looked.value["queues"], looked.value["page"]
    if not counts["total"]:
        how = (
            tag("code", 'server.new_queue("tasks")'),
            " or ",
            tag("code", "fray queue create URL"),
            " makes one.",
        )
        return join([problem, empty("No queues yet. ", *how)])
    sort = query.choice("sort", SORTS)
    options = [
        ("", f"all {counts['named']:,}"),
        ("waiting", f"with items that wait {counts['waiting']:,}"),
        ("dead", f"with dead letters {counts['dead']:,}"),
    ]
    chips = choices("Which", "only", options, query, query.choice("only", KINDS), page=None)
    if not queues:
        everything = tag("a", "Show all", href=query.link(q=None, only=None, page=None))
        return join([problem, chips, empty(f"None of {counts['total']:,} queues fits. ", everything)])
    first = number * PER_PAGE + 1
    rows = [
        row(_QUEUES, _queue(each, query), key=each["name"], place=at) for at, each in enumerate(queues, first)
    ]
    listed = table("List of queues", _QUEUES, rows, query, sort=sort, total=counts["found"])
    return join([problem, chips, listed, pager(query, number, len(queues), counts["found"], "queues")])


def queue_part(looked: Looked[dict[str, Any]]) -> Html:
    """Return the counts of one queue, and what went through it in the last two minutes."""
    if looked.loading:
        return loading("counts")
    problem = failure(looked, "queue")
    stats = looked.value
    if stats is None:
        return problem
    facts = {
        "waiting": f"{stats['pending']:,}",
        "in flight": f"{stats['in_flight']:,}",
        "dead": f"{stats['dead']:,}"
        + (f" ({stats['dead_dropped']:,} dropped)" if stats.get("dead_dropped") else ""),
        "oldest": _oldest(stats),
        "size": UNKNOWN if stats["bytes"] is None else in_words(stats["bytes"]),
        "attempts": UNKNOWN if stats["max_attempts"] is None else f"{stats['max_attempts']} at most",
        "items": UNKNOWN if stats.get("max_size") is None else f"{stats['max_size']:,} at most",
        "since the server started": f"{stats['pushed_total']:,} pushed, {stats['done_total']:,} done",
        "kept": stats.get("stored") or ("on disk" if stats["durable"] else "in memory"),
    }
    listed = tag(
        "dl", *(join([tag("dt", key), tag("dd", said)]) for key, said in facts.items()), class_="facts"
    )
    plots = stats["plots"]
    pictures = [_over_time(title, plots[key], word) for title, key, word in _CHARTS]
    return join([problem, tag("div", *pictures, class_="charts"), listed])


_CHARTS = (("Pushed", "pushed", " / s"), ("Done", "done", " / s"), ("Depth", "size", " items"))


def letters_part(looked: Looked[dict[str, Any]], query: Query, base: str = "") -> Html:
    """Return dead letters of a queue, with what failed each.

    Args:
        base: What stands before the addresses of the server.
    """
    if looked.loading:
        return loading("dead letters")
    problem = failure(looked, "list of dead letters")
    if looked.value is None:
        return problem
    letters: Sequence[Mapping[str, Any]] = looked.value["dead"]
    if not letters:
        return join([problem, empty("No dead letters.")])
    name = query.text("name")
    at = f"{base}queues/{quote(name, safe='')}"
    everything = tag(
        "p",
        action(
            "Requeue all",
            f"{at}/requeue",
            {"item_ids": None},
            f"Put all dead letters of {name} back in line?",
        ),
        " ",
        action(
            "Delete all",
            f"{at}/purge",
            {"dead": True, "item_ids": None},
            f"Delete all dead letters of {name}, with what they hold? Nothing brings them back.",
            danger=True,
        ),
    )
    rows = [row(_LETTERS, _letter(each, at), key=each["item_id"]) for each in letters]
    steps = [tag("a", "First", href=query.link(after=None))] if query.text("after") else []
    if looked.value.get("more"):
        steps.append(tag("a", "Next", href=query.link(after=letters[-1]["place"])))
    below = tag(
        "nav",
        tag("span", f"{len(letters):,} shown", class_="count"),
        *steps,
        class_="pager",
        aria_label="Pages of dead letters",
    )
    return join([problem, everything, table("Dead letters", _LETTERS, rows, query), below])


def _filter(query: Query) -> Html:
    field = search_field("q", query.text("q"), "name")
    send = tag("noscript", tag("button", "Filter", type="submit"))
    kept = hidden_inputs(query, "server", "only", "sort")
    return tag("form", tag("label", "Filter", for_="q"), field, kept, send, class_="filter", method="get")


def _queue(stats: Mapping[str, Any], query: Query) -> list[Html | str]:
    plots = stats["plots"]
    name = stats["name"]
    link = Query({}).link("queue", server=query.text("server") or None, name=name)
    return [
        tag("a", stranger(name), href=link, title=name),
        f"{stats['pending']:,}",
        f"{stats['in_flight']:,}",
        tag("strong", f"{stats['dead']:,}", class_="failed") if stats["dead"] else "0",
        _oldest(stats),
        _rate(plots["pushed"]),
        _rate(plots["done"]),
        join([sparkline(_thinned(plots["size"])), f"{stats['size']:,}"]),
    ]


def _oldest(stats: Mapping[str, Any]) -> str:
    seconds = stats["oldest_seconds"]
    return duration(0.0, seconds) if stats["size"] and seconds is not None else UNKNOWN


def _rate(each_second: Sequence[int]) -> str:
    last = each_second[-_LAST:]
    rate = sum(last) / len(last) if last else 0.0
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _thinned(values: Sequence[int]) -> Sequence[float]:
    """Return every second value; of a queue in which nothing happens two."""
    if len(set(values)) < 2:
        return [*values[:1], *values[:1]]
    return values[::-2][::-1]


def _over_time(title: str, values: Sequence[int], unit: str) -> Html:
    now = time.time()
    points = [(now - len(values) + at, float(value)) for at, value in enumerate(values, 1)]
    span = (points[0][0], now) if points else (now - 1, now)
    return chart(
        title, [Line(points)] if points else [], span, told=(f"{max(values, default=0):,}{unit}", "")
    )


def _letter(letter: Mapping[str, Any], at: str) -> list[Html | str]:
    item = letter["item_id"]
    again = action("Requeue", f"{at}/requeue", {"item_ids": [item]}, f"Put {item} back in line?")
    gone = action(
        "Delete",
        f"{at}/purge",
        {"dead": True, "item_ids": [item]},
        f"Delete {item}, with what it holds?",
        danger=True,
    )
    return [
        stranger(item),
        str(letter["attempts"]),
        _story(letter),
        in_words(letter["bytes"]),
        join([again, " ", gone]),
    ]


def _story(letter: Mapping[str, Any]) -> Html:
    """Return how its attempts ended, and what failed the last one."""
    told = [f"{outcome} after {duration(start, end)}" for _, outcome, start, end, *_ in letter["history"]]
    if letter.get("expired"):
        told.append("expired")
    errors = [attempt[4] for attempt in letter["history"] if len(attempt) > 4 and attempt[4]]
    shown = tag("span", ", ".join(told[-5:]))
    if not errors:
        return shown
    first, _, rest = str(errors[-1])[:_LONGEST_ERROR].partition("\n")
    more = (
        tag("details", tag("summary", first), tag("pre", rest))
        if rest
        else tag("span", f": {first}", class_="error")
    )
    return join([shown, more])
