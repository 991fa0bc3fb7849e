"""The log of a job: its last lines, requested again and again; a search is done where the log is."""

import re
from collections import deque
from typing import TYPE_CHECKING, Any

from fray._ui.listing import Query, search_field
from fray._ui.markup import Html, join, tag
from fray._ui.shared_calls import Looked
from fray._ui.shell import empty, failure, loading

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster

LINES = ("500", "100", "2000", "10000")
_LONGEST_LINE = 4000  # characters
_MOST = 2_000_000  # characters of all lines
# Colours and other orders to a terminal.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")


def check_choice(query: Query) -> None:
    """Refuse an address with invalid parameters.

    Raises:
        WrongQueryError: It does.
    """
    query.choice("lines", LINES)
    query.number("replica")


def log_lines(cluster: "Cluster", query: Query) -> list[str]:
    """Return the last lines of a log, of one replica or those in which something is found."""
    replica, grep = query.text("replica"), query.text("grep")
    options: dict[str, Any] = {"replica": query.number("replica")} if replica else {}
    if grep:
        # As plain text: an expression can take for ever on a line, and no other thread runs meanwhile.
        options["grep"] = re.escape(grep)
    tail = int(query.choice("lines", LINES))
    stream = cluster.monitor(query.text("id"), tail=tail, follow=False, **options)
    lines: deque[str] = deque()
    size = 0
    for line in stream:
        lines.append(readable(line))
        size += len(lines[-1])
        while size > _MOST:
            size -= len(lines.popleft())
    return list(lines)


def readable(line: str) -> str:
    """Return a line as a terminal would leave it: without colours, and of a progress bar the last state."""
    last = _ESCAPES.sub("", line[: 4 * _LONGEST_LINE]).rstrip("\r").rpartition("\r")[2]
    if len(last) > _LONGEST_LINE or len(line) > 4 * _LONGEST_LINE:
        return f"{last[:_LONGEST_LINE]} … ({len(line):,} characters)"
    return last


def log_part(looked: Looked[list[str]], query: Query) -> Html:
    """Return the lines, or why there are none."""
    if looked.loading:
        return loading("log")
    problem = failure(looked, "log")
    if looked.value is None:
        return problem
    if not looked.value:
        found = query.text("grep")
        nothing = f"No line has {found!r} (expressions: fray logs --grep)." if found else "The log is empty."
        return join([problem, empty(nothing)])
    label = "Last lines of the log"
    shown = tag("pre", "\n".join(looked.value), class_="log", tabindex="0", role="log", aria_label=label)
    full = len(looked.value) >= int(query.choice("lines", LINES))
    which = "the last " if full else ""
    there = "; earlier ones: fray logs" if full else ""
    return join([problem, shown, tag("p", f"{which}{len(looked.value):,} lines{there}", class_="count")])


def log_form(query: Query) -> Html:
    """Return what chooses the lines."""
    replica = tag(
        "input",
        type="number",
        name="replica",
        id="replica",
        min=0,
        value=query.text("replica"),
        placeholder="all",
    )
    lines = query.text("lines", LINES[0])
    counts = [
        tag("option", f"{int(each):,} lines", value=each, selected=each == lines)
        for each in sorted(LINES, key=int)
    ]
    search = search_field("grep", query.text("grep"), "plain text")
    follow = tag("label", tag("input", type="checkbox", id="follow", checked=True), " follow")
    return tag(
        "form",
        tag("label", "Search", for_="grep"),
        search,
        tag("label", "Replica", for_="replica"),
        replica,
        tag("select", *counts, name="lines", aria_label="How many lines"),
        follow,
        tag("input", type="hidden", name="id", value=query.text("id")),
        tag("input", type="hidden", name="cluster", value=query.text("cluster")),
        tag("noscript", tag("button", "Show", type="submit")),
        class_="filter",
        method="get",
    )
