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
    """Take the signals that end a server, and return what waits for the first; in the main thread.

    SIGHUP is one, for a terminal that is closed, unless it is ignored, as `nohup` has it.
    """
    # A handler may put into it at any moment; an Event can lock up.
    came: SimpleQueue[None] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: came.put(None))
    return came.get
