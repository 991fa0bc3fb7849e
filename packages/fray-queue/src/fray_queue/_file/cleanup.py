"""Remove the files of finished items: at once on a disk, in bulk and in the background on an object store."""

import logging
import os
import threading
import time

from fray.backend import NoThreadError, start_thread
from fray_queue._file.stores.store import Store

_log = logging.getLogger("fray.queue")
_BULK = 100
_GLANCE = 0.25  # seconds between looks whether the program is about to end
_MOST = 10_000  # items that are kept for later while the store refuses


class Cleanup:
    """Removes payloads first, then histories; what it does not get to, another client does later.

    Args:
        delay: Seconds that the first of a bulk waits for others, and a bulk that failed for its next try.
    """

    def __init__(self, store: Store, *, background: bool, delay: float) -> None:
        self._store, self._delay = store, delay
        self._background = background
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._waiting: list[tuple[str, list[str]]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def remove(self, payload: str, records: list[str]) -> bool:
        """Remove the files of one item; False: later."""
        if not self._background:
            try:
                self._store.delete([payload, *records])
            except OSError as error:  # the item is finished; another client removes them later
                _warn(1, error)
                return False
            return True
        started = True
        with self._mine():
            self._waiting.append((payload, records))
            if self._thread is None:
                self._closing = False
                started = self._start_thread()
            elif len(self._waiting) >= _BULK:
                self._changed.notify_all()
        if not started:
            self.close()
        return False

    def close(self) -> None:
        """Return when all is removed, or the store refused once more."""
        with self._mine():
            self._closing = True
            here = self._waiting and self._thread is None and not self._start_thread()
            thread = self._thread
            self._changed.notify_all()
        if here:
            self._run()
        elif thread is not None:
            thread.join()

    def _mine(self) -> threading.Condition:
        if self._process != os.getpid():  # the thread, and what waits for it, is the parent's
            self._start()
        return self._changed

    def _start_thread(self) -> bool:
        """Start the thread; False where there can be none, because the program has ended."""
        # Not a daemon: a program that ends waits for the last bulk.
        thread = threading.Thread(target=self._run, name="fray-queue-cleaner", daemon=False)
        try:
            self._thread = start_thread(thread)
        except NoThreadError:
            return False
        return True

    def _run(self) -> None:
        refused = False
        while bulk := self._next(refused=refused):
            try:
                self._remove(bulk)
            except Exception as error:  # noqa: BLE001 - whatever it is, the items after these need a cleaner
                _warn(len(bulk), error)
                refused = True
                if self._put_back(bulk):
                    return
            else:
                refused = False

    def _next(self, *, refused: bool) -> list[tuple[str, list[str]]]:
        """Wait for a bulk and return it; nothing when there is none, and the thread ends."""
        with self._changed:
            end = time.monotonic() + self._delay
            while not self._is_due(end, refused=refused):
                self._changed.wait(min(_GLANCE, self._delay))
            bulk, self._waiting = self._waiting, []
            if not bulk:
                self._thread = None
            return bulk

    def _put_back(self, bulk: list[tuple[str, list[str]]]) -> bool:
        """Keep a bulk for another try; True where there is none, and the thread ends."""
        with self._changed:
            self._waiting = [*bulk, *self._waiting][-_MOST:]
            if self._is_ending():
                self._thread = None
            return self._thread is None

    def _is_due(self, end: float, *, refused: bool) -> bool:
        if self._is_ending() or time.monotonic() >= end:
            return True
        return not refused and (not self._waiting or len(self._waiting) >= _BULK)

    def _is_ending(self) -> bool:
        return self._closing or not threading.main_thread().is_alive()

    def _remove(self, bulk: list[tuple[str, list[str]]]) -> None:
        # A history without its payload is finished; a payload without its history would be a new item.
        self._store.delete([payload for payload, _ in bulk])
        self._store.delete([record for _, records in bulk for record in records])


def _warn(count: int, error: Exception) -> None:
    _log.warning(
        "the files of %d finished items or batches stay for now: %s: %s", count, type(error).__name__, error
    )
