"""How a worker ends: as a Python program does, but in bounded time."""

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable

from fray_local._process.worker import output

KILLED = 113
"""Exit code of an actor that another program has killed: its owner does not start it again."""
_SECONDS = 3.0  # for each step


def leave() -> None:
    """Run what was registered for the end of the program; what hangs in there is left behind.

    The order is the interpreter's: `concurrent.futures` and loky end their processes from functions that
    `threading` calls first; without those, multiprocessing's own `atexit` function would wait for
    children that nothing ended. What still runs is killed with the process tree.
    """
    _in_time(_end_pools)
    join(thread for thread in threading.enumerate() if not thread.daemon)
    _in_time(atexit._run_exitfuncs)
    output.flush()


def _end_pools() -> None:
    functions: list[Callable[[], object]] = getattr(threading, "_threading_atexits", [])
    for function in reversed(functions):
        with contextlib.suppress(Exception):
            function()


def join(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads, in bounded time."""
    end = time.monotonic() + _SECONDS
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))


def _in_time(act: Callable[[], object]) -> None:
    """Call something on this thread; where it takes too long, end the process from another."""
    over = threading.Event()

    def watch() -> None:
        if not over.wait(_SECONDS):
            with contextlib.suppress(Exception):
                output.flush()
            os._exit(0)

    threading.Thread(target=watch, name="fray-leaving", daemon=True).start()
    with contextlib.suppress(BaseException):
        act()
    over.set()
