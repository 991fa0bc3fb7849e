"""Starting threads, also where the program may have ended.

From Python 3.12 on no thread is to be started once the last line of the program has run: not by a function
of `atexit`, and on some releases not by a thread that still runs. What may happen that late either has its
thread before, or is done by the thread that wants it.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class NoThreadError(RuntimeError):
    """No thread can be started: the program has ended, or the system's limit on threads is reached."""


def start_thread(thread: threading.Thread) -> threading.Thread:
    """Start a thread, and return it.

    Raises:
        NoThreadError: There can be none; a caller that can do without it catches this.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError(f"the thread {thread.name!r} was not started: {error}{_advice()}") from None
    return thread


def run_aside(act: Callable[[], object], name: str) -> None:
    """Do something in a thread of its own; where there can be none, in this one, before this returns."""
    try:
        start_thread(threading.Thread(target=act, name=name, daemon=True))
    except NoThreadError:
        act()


def map_in_threads(act: Callable[[T], R], items: Iterable[T], most: int, name: str) -> list[R]:
    """Return what `act` returns for each item, for up to `most` of them at the same time.

    This thread is one of them, and does it all where there can be no other: an executor of the standard
    library refuses everything once the program has ended. After an exception no further item is begun; the
    first is raised.
    """
    waiting = list(enumerate(items))
    waiting.reverse()
    found: dict[int, R] = {}
    failed: list[BaseException] = []

    def work() -> None:
        while not failed:
            try:
                number, item = waiting.pop()  # atomic
            except IndexError:
                return
            try:
                found[number] = act(item)
            except BaseException as error:  # noqa: BLE001 - it is raised below
                failed.append(error)

    helpers = []
    try:
        for _ in range(min(most, len(waiting)) - 1):
            thread = threading.Thread(target=work, name=name)
            helpers.append(start_thread(thread))
    except NoThreadError:
        pass  # there are as many as there can be
    work()
    for helper in helpers:
        helper.join()
    if failed:
        raise failed[0]
    return [found[number] for number in sorted(found)]


def _advice() -> str:
    if threading.main_thread().is_alive() and not sys.is_finalizing():
        return ""
    return (
        "; the program has ended, and Python starts no more threads: do this before its last line, rather "
        "than in an atexit function or a thread that goes on after it"
    )
