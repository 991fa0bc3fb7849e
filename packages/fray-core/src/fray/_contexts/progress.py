"""A progress bar: in a notebook, or on stderr where that is a terminal; rich is loaded there only."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_EVERY = 0.2  # seconds between two bars in a notebook


@contextlib.contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs and give it a function that counts one item; elsewhere nothing."""
    from fray._values.notebooks import notebook_display

    display = notebook_display()
    if display is not None:
        yield from _in_notebook(display, label, total)
        return
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def _in_notebook(display: Any, label: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a bar in the output of a cell: one place that is written over."""
    from fray._values.notebooks import bar_html

    start = time.monotonic()
    done, shown = 0, start

    def bar() -> Any:
        return display.HTML(bar_html(label, done, total, time.monotonic() - start))

    def advance() -> None:
        nonlocal done, shown
        done += 1
        now = time.monotonic()
        if now - shown >= _EVERY:
            shown = now
            place.update(bar())

    place = display.display(bar(), display_id=True)
    try:
        yield advance
    finally:
        place.update(bar())
