"""Threads for what is the user's and may wait: the unpickling of results, and callbacks of futures.

One thread does it as long as it is quick. Where nothing was finished for a moment and something is left to
do, another one helps, which ends when there is nothing more for it; unless many unpickle, one after another.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator

from fray.backend import NoThreadError, start_thread

_QUICK = 0.02  # seconds in which something is finished where nothing waits
_IDLE = 1.0  # seconds that a thread beyond the first stays without anything to do
_UNPICKLING = 16  # threads: Ray unpickles one value at a time, so more of them only wait for each other

_log = logging.getLogger("fray.ray")


class WaitingThreads:
    """Runs functions in the order given, as many at a time as wait, and one more."""

    def __init__(self) -> None:
        self._acts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._left: queue.SimpleQueue[None] = queue.SimpleQueue()  # which a finalizer may come in between of
        self._finished = 0
        self._unpickling: set[int] = set()  # the identities of threads
        self._started = False
        self._lock = threading.RLock()  # a finalizer may come in between

    def start(self) -> bool:
        """Have threads; return whether there can be any: none is started once the program has ended."""
        if self._started:
            return True
        with self._lock:
            if not self._started:
                try:
                    start_thread(self._thread(self._work))
                    start_thread(self._thread(self._help))
                except NoThreadError:
                    return False
                self._started = True
        return True

    def run(self, act: Callable[[], None]) -> None:
        """Have a function called soon, and do not wait for it."""
        self._acts.put(act)
        self._left.put(None)

    @contextlib.contextmanager
    def unpickling(self) -> Iterator[None]:
        """Mark that the calling thread unpickles a value: where many do, no other is started to help."""
        self._unpickling.add(threading.get_ident())
        try:
            yield
        finally:
            self._unpickling.discard(threading.get_ident())

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name="fray-callbacks", daemon=True)

    def _work(self) -> None:
        while True:
            self._act(self._acts.get())

    def _work_for_a_while(self) -> None:
        while True:
            try:
                act = self._acts.get(timeout=_IDLE)
            except queue.Empty:
                return
            self._act(act)
            del act

    def _act(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException:  # noqa: BLE001 - a callback's SystemExit is no reason to stop either
            _log.exception("a callback failed: %r", act)
        finally:
            self._finished += 1

    def _help(self) -> None:
        """Start a thread whenever something is left to do and nothing is finished."""
        while True:
            self._left.get()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._left.get_nowait()
            while not self._acts.empty():
                finished = self._finished
                time.sleep(_QUICK)
                if finished == self._finished and self._wants_help():
                    try:
                        start_thread(self._thread(self._work_for_a_while))
                    except NoThreadError:
                        break

    def _wants_help(self) -> bool:
        return not self._acts.empty() and len(self._unpickling) < _UNPICKLING
