"""Remove the files of finished items: at once on a disk, in bulk and in the background on an object store."""

import threading
import time

from fray_queue._store import Store

_BULK = 100
_LINGER = 5.0  # seconds that the first of a bulk waits for others
_GLANCE = 0.25  # seconds between looks whether the program is about to end


class Cleaner:
    """Removes payloads first, then histories; what it does not get to, another client does later."""

    def __init__(self, store: Store, *, background: bool) -> None:
        self._store = store
        self._background = background
        self._waiting: list[tuple[str, list[str]]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def remove(self, payload: str, records: list[str]) -> bool:
        """Remove the files of one item; False: later."""
        if not self._background:
            self._store.delete([payload, *records])
            return True
        with self._changed:
            self._waiting.append((payload, records))
            if self._thread is None:
                # Not a daemon: a program that ends waits for the last bulk.
                self._thread = threading.Thread(target=self._run, name="fray-queue-cleaner", daemon=False)
                self._closing = False
                self._thread.start()
            elif len(self._waiting) >= _BULK:
                self._changed.notify_all()
        return False

    def close(self) -> None:
        """Return when all is removed."""
        with self._changed:
            thread, self._closing = self._thread, True
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                end = time.monotonic() + _LINGER
                while not self._is_due(end):
                    self._changed.wait(_GLANCE)
                bulk, self._waiting = self._waiting, []
                if not bulk:
                    self._thread = None
                    return
            self._remove(bulk)

    def _is_due(self, end: float) -> bool:
        late = self._closing or time.monotonic() >= end or not threading.main_thread().is_alive()
        return late or not self._waiting or len(self._waiting) >= _BULK

    def _remove(self, bulk: list[tuple[str, list[str]]]) -> None:
        # A history without its payload is finished; a payload without its history would be a new item.
        self._store.delete([payload for payload, _ in bulk])
        self._store.delete([record for _, records in bulk for record in records])
