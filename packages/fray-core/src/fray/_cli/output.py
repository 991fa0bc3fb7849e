"""Tables on stdout: aligned text in a pipe, a fitted and coloured table on a terminal."""

import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence

import click


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Mapping[str, str] | None = None,
    *,
    key: int = 0,
) -> None:
    """Print rows under a header; on a terminal columns are fitted to its width, long cells folded.

    Args:
        styles: The style of cells that hold exactly such a text, on a terminal.
        key: The column that is never folded: what a row is called.
    """
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[key].no_wrap = True  # it is there to be copied
        for row in rows:
            # As Text: in a str, rich would read "[replica-0]" as markup and drop it.
            table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Mapping[str, str],
    *,
    shrink: Sequence[tuple[str, int]],
) -> None:
    """Print one line a row; on a terminal as wide as it is, in a pipe as wide as the rows are.

    Args:
        shrink: The columns that are shortened where there is not enough room, in this order, and how far:
            ids in the middle, so that what tells them apart stays, the last column at its end.
    """
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    if sys.stdout.isatty():
        over = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
        for name, least in shrink:
            index = columns.index(name)
            taken = max(0, min(over, widths[index] - least))
            widths[index] -= taken
            over -= taken
    for number, row in enumerate([columns, *rows]):
        cells = [
            _cell(text, width, styles if number else {}, last=index == len(row) - 1)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def _cell(text: str, width: int, styles: Mapping[str, str], *, last: bool) -> str:
    if _width(text) > width:
        text = _shortened(text, width, from_the_end=last)
    padded = text + " " * (width - _width(text))
    colour = styles.get(text)
    if colour is None:
        return padded
    return click.style(padded, dim=True) if colour == "dim" else click.style(padded, fg=colour)


def _shortened(text: str, width: int, *, from_the_end: bool) -> str:
    end = "" if from_the_end else text[-min(8, width // 2) :]
    return f"{beginning(text, width - 1 - len(end))}…{end}"


def beginning(text: str, width: int) -> str:
    """Return as much of a text as fits so many places of a terminal."""
    text = text[: max(0, width)]
    while text and _width(text) > width:
        text = text[:-1]
    return text


def _width(text: str) -> int:
    """Return how many places of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
