"""Tables on stdout: aligned text in a pipe, a fitted and coloured table on a terminal."""

import sys
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
