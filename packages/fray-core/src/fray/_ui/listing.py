"""What every long list on a page has: a page of it, the columns that it is sorted by, its filter."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from fray._ui.markup import NOTHING, Html, join, tag, text

T = TypeVar("T")

PER_PAGE = 100
_LONGEST = 500  # characters of a value in an address


class WrongQueryError(ValueError):
    """An address has an invalid parameter."""


class Query:
    """What stands behind the `?` of a page's address."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {key: value for key, value in values.items() if value}
        for key, value in self._values.items():
            if len(value) > _LONGEST:
                raise WrongQueryError(f"{key[:50]!r} has more than {_LONGEST} characters")

    def text(self, key: str, default: str = "") -> str:
        """Return a value; where it is not given, the default."""
        return self._values.get(key, default)

    def number(self, key: str, default: int = 0, most: int = 10**6) -> int:
        """Return a count from 0 on."""
        given = self._values.get(key)
        if given is None:
            return default
        if not (given.isascii() and given.isdecimal() and len(given) <= len(str(most))):
            raise WrongQueryError(f"{key!r} is a number from 0 to {most}")
        return min(int(given), most)

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """Return one of some values; the first where it is not given."""
        given = self._values.get(key, choices[0])
        if given not in choices:
            raise WrongQueryError(f"{key!r} is one of {', '.join(choice or 'nothing' for choice in choices)}")
        return given

    def link(self, path: str = "", /, **changes: str | int | None) -> str:
        """Return the address of the same page, or another, with some values changed; None drops one."""
        values = {**self._values, **{key: str(value) for key, value in changes.items() if value is not None}}
        kept = {key: value for key, value in values.items() if changes.get(key, "") is not None and value}
        return f"{path}?{urlencode(kept, errors='replace')}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        key: What sorts by it; None where nothing does.
        kind: A class of its cells.
    """

    title: str
    key: str | None = None
    kind: str | None = None


def page_of(items: Sequence[T], number: int) -> tuple[Sequence[T], int]:
    """Return a page of a list, and which it is: the last one where there are not so many."""
    number = min(number, max(0, (len(items) - 1) // PER_PAGE))
    return items[number * PER_PAGE : (number + 1) * PER_PAGE], number


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Html],
    query: Query,
    *,
    sort: str = "",
    total: int | None = None,
    parameter: str = "sort",
) -> Html:
    """Return a table whose rows are `row`s; roles are named, since narrow screens lay it out as cards.

    Args:
        sort: The key that it is sorted by, with `-` in front for downwards.
        total: Rows of the whole list, where more than these.
        parameter: The parameter of the address that has the sort.
    """
    heads = [_head(column, query, sort, parameter) for column in columns]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="hidden"),
            tag("thead", tag("tr", *heads, role="row"), role="rowgroup"),
            tag("tbody", *rows, role="rowgroup"),
            role="table",
            aria_rowcount=None if total is None else total + 1,
        ),
        class_="scroll",
    )


def row(columns: Sequence[Column], cells: Sequence[str], *, key: str, place: int | None = None) -> Html:
    """Return a row; `key` names it among the others, so that it stays the same one when the page changes.

    Args:
        place: Its place in the whole list, from 1.
    """
    made = [
        tag("td", cell, class_=column.kind, data_label=column.title, role="cell")
        for column, cell in zip(columns, cells, strict=True)
    ]
    return tag("tr", *made, data_key=key, role="row", aria_rowindex=None if place is None else place + 1)


def pager(query: Query, number: int, shown: int, total: int, what: str, parameter: str = "page") -> Html:
    """Return which of how many are shown, with links to the others."""
    if total <= PER_PAGE:
        return tag("p", f"{total:,} {what.removesuffix('s') if total == 1 else what}", class_="count")
    first = number * PER_PAGE
    last = (total - 1) // PER_PAGE
    steps = [
        _step("First", query.link(**{parameter: None}), number > 0),
        _step("Previous", query.link(**{parameter: number - 1 or None}), number > 0),
        _step("Next", query.link(**{parameter: number + 1}), number < last),
        _step("Last", query.link(**{parameter: last}), number < last),
    ]
    told = tag("span", f"{first + 1:,} to {first + shown:,} of {total:,} {what}", class_="count")
    return tag("nav", told, *steps, class_="pager", aria_label=f"Pages of {what}")


def choices(
    label: str, name: str, options: Sequence[tuple[str, str]], query: Query, chosen: str, **dropped: None
) -> Html:
    """Return links of which one is the current: a filter of few values."""
    links = [
        tag(
            "a",
            title,
            href=query.link(**{name: value or None}, **dropped),
            aria_current="true" if value == chosen else None,
            class_="chip",
        )
        for value, title in options
    ]
    return tag("nav", *links, class_="chips", aria_label=label)


def search_field(name: str, value: str, placeholder: str) -> Html:
    """Return the field of a form that text is typed into."""
    return tag(
        "input",
        type="search",
        name=name,
        id=name,
        value=value,
        maxlength=200,
        placeholder=placeholder,
        autocomplete="off",
        spellcheck="false",
    )


def hidden_inputs(query: Query, *names: str) -> Html:
    """Keep the other parameters of an address when a form is sent without a script."""
    return join(
        tag("input", type="hidden", name=name, value=query.text(name)) for name in names if query.text(name)
    )


def _head(column: Column, query: Query, sort: str, parameter: str) -> Html:
    title: Html = text(column.title)
    current = column.key is not None and sort.removeprefix("-") == column.key
    if column.key is not None:
        turned = f"-{column.key}" if sort == column.key else column.key
        arrow = tag("span", "▼" if sort.startswith("-") else "▲", aria_hidden="true") if current else NOTHING
        title = tag("a", title, arrow, href=query.link(**{parameter: turned, "page": None}))
    order = ("descending" if sort.startswith("-") else "ascending") if current else None
    return tag("th", title, class_=column.kind, scope="col", role="columnheader", aria_sort=order)


def _step(title: str, href: str, there: bool) -> Html:
    return tag("a", title, href=href) if there else tag("span", title, class_="off", aria_hidden="true")
