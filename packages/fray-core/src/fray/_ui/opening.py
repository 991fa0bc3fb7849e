"""Open the page in the browser of this machine."""

import contextlib
import html
import os
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def opened(link: str) -> Iterator[None]:
    """Have a browser open a link, whose token no other user of this machine sees.

    Every user can read the command line of a browser. It gets the name of a file that only its user can
    read, which leads to the link and is there until the end of the block.
    """
    descriptor, name = tempfile.mkstemp(prefix="fray-ui-", suffix=".html")  # mode 0600
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_leading_to(link))
        # A browser may run in the foreground, as those in a terminal do: Ctrl-C must come through meanwhile.
        threading.Thread(target=webbrowser.open, args=(path.as_uri(),), daemon=True).start()
        yield
    finally:
        path.unlink(missing_ok=True)


def _leading_to(link: str) -> str:
    shown = html.escape(link)
    return (
        f'<!doctype html>\n<html lang=en><head><meta charset="utf-8"><title>Fray</title>'
        f'<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={shown}">'
        f'</head><body><a href="{shown}">Open the page</a></body></html>\n'
    )
