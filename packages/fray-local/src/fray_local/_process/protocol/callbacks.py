"""Where user code runs that no thread waits for: away from the threads that read messages."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fray import TaskCancelledError
from fray.backend import NoThreadError, run_aside, start_thread

_SLOW_SECONDS = 0.02  # after which another thread takes over what waits behind an act


class CallbackThreads:
    """Does what may block, in order, in threads that live while there is something to do.

    One thread does it all as long as no act takes long; behind a slow one other threads continue.
    """

    def __init__(self) -> None:
        self._acts: deque[Callable[[], object]] = deque()
        self._running: dict[int, float] = {}  # by thread, since when it does its act
        self._watched = False

    def do(self, act: Callable[[], object]) -> None:
        """Do something soon; from any thread, finalizers included."""
        self._acts.append(act)
        self._help()

    def _help(self) -> None:
        """Start a thread where something waits, unless another is about to come to it."""
        if not self._acts:
            return
        late = time.monotonic() - _SLOW_SECONDS
        if any(since > late for since in list(self._running.values())):
            self._watch()  # it may have begun an act that takes long
            return
        run_aside(self._run, "fray-callbacks")

    def _watch(self) -> None:
        """Look again in a while whether something waits."""
        if self._watched:
            return
        self._watched = True
        timer = threading.Timer(_SLOW_SECONDS, self._look)
        timer.daemon = True
        try:
            start_thread(timer)
        except NoThreadError:  # the program has ended: what waits is done behind the act
            self._watched = False

    def _look(self) -> None:
        self._watched = False  # before the look: what comes from now on requests another
        self._help()

    def _run(self) -> None:
        me = threading.get_ident()
        while True:
            self._running[me] = time.monotonic()
            try:
                act = self._acts.popleft()
            except IndexError:
                del self._running[me]
                if not self._acts:
                    return
                continue
            try:
                act()
            except Exception:  # noqa: BLE001 - one bad callback must not keep the others
                sys.excepthook(*sys.exc_info())


def settle_future(future: "Future[Any]", load: Callable[[], Any]) -> None:
    """Give a future what `load` returns or raises."""
    try:
        value = load()
    except TaskCancelledError:
        Future.cancel(future)  # not its own, which cancels the task
        future.set_running_or_notify_cancel()
    except BaseException as error:  # noqa: BLE001 - the task's, or that of a value that cannot be unpickled
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(value)
