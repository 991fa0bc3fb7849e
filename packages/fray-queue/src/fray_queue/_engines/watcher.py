"""One thread that waits for an engine's notifications of a queue, for many waiting calls."""

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from fray import FrayError
from fray.backend import start_thread
from fray_queue._engines.store import EngineStore, Wanted

_log = logging.getLogger("fray.queue")
LOOK_AGAIN = 2.0
"""Seconds after which a waiting call looks at the latest. An engine does not report expired leases."""
_LINGER = 1.0  # seconds after the last waiting call
_PAUSE = 0.2  # seconds; the engine is away


class Watcher:
    """Waits while there is a waiting call.

    Args:
        told: Is called in the watcher's thread with what may be there, or, when it is time to look, with
            nothing.
    """

    def __init__(self, store: EngineStore, told: Callable[[Wanted], None]) -> None:
        self._store, self._told = store, told
        self._changed = threading.Condition()
        self._items = self._room = 0
        self._answers: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._alarm = secrets.token_hex(4)

    def want(self, what: str, item_ids: Sequence[str] = ()) -> bool:
        """Begin to watch for something, beside what others want; return whether `ring` is to be called."""
        with self._changed:
            known = self._wanted()
            self._count(what, item_ids, 1)
            if self._closing:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="fray-queue-watcher", daemon=True)
                self._thread = start_thread(thread)
            self._changed.notify()
            return self._store.tells_what and known not in (Wanted(), self._wanted())

    def ring(self) -> None:
        """Have the thread wait for what is wanted now."""
        with suppress(FrayError):  # then the thread asks again by itself
            self._store.ring(self._alarm)

    def unwant(self, what: str, item_ids: Sequence[str] = ()) -> None:
        """Watch for it no more."""
        with self._changed:
            self._count(what, item_ids, -1)

    def _count(self, what: str, item_ids: Sequence[str], change: int) -> None:
        if what == "items":
            self._items += change
        elif what == "room":
            self._room += change
        for item_id in item_ids:
            self._answers[item_id] += change
            if not self._answers[item_id]:
                del self._answers[item_id]

    def _wanted(self) -> Wanted:
        return Wanted(self._items > 0, self._room > 0, tuple(self._answers))

    def _next(self) -> Wanted | None:
        """Return what to wait for; None when the thread ends, as nobody wants anything."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._wanted() != Wanted(), _LINGER)
            if self._closing or self._wanted() == Wanted():
                self._thread = None
                return None
            return self._wanted()

    def _run(self) -> None:
        try:
            while (wanted := self._next()) is not None:
                self._hand_on(self._wait(wanted))
        finally:
            with self._changed:
                if self._thread is threading.current_thread():  # it fails, and the next call starts another
                    self._thread = None

    def _wait(self, wanted: Wanted) -> Wanted:
        try:
            return self._store.wait(wanted, LOOK_AGAIN, alarm=self._alarm)
        except FrayError:  # a waiting call polls, and gets the error
            pass
        except Exception:  # noqa: BLE001 - whatever it is, others wait, too
            _log.exception("the engine cannot be waited for, and is asked again")
        threading.Event().wait(_PAUSE)
        return Wanted()

    def _hand_on(self, found: Wanted) -> None:
        with self._changed:
            if found != Wanted() and not self._store.tells_what:
                found = self._wanted()
            unwanted = found.items and not self._items
        if unwanted:
            with suppress(FrayError):
                self._store.pass_on(found)
        else:
            self._told(found)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            self.ring()
            thread.join(LOOK_AGAIN)
