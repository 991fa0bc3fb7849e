"""What the commands share that serve until a signal ends them."""

import signal
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue


def token_in(file: Path) -> str:
    """Return the token that a file holds.

    Raises:
        ValueError: The file is no text.
    """
    try:
        return file.read_text().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text: it is to hold a token") from error


def ending_signal() -> Callable[[], None]:
    """Take SIGTERM and SIGINT from now on, and return what waits for the first; in the main thread."""
    # A handler may put into it at any moment; an Event can lock up.
    came: SimpleQueue[None] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: came.put(None))
    return came.get
