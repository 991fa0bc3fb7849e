"""The provider's word that it takes a machine away, which on Google's clouds the metadata server has."""

import contextlib
import http.client
import os
import queue
import threading
import time

_SERVER = "GCE_METADATA_HOST"  # the variable that Google's own libraries read
_DEFAULT = "metadata.google.internal"
_EVENTS = {
    "/computeMetadata/v1/instance/preempted": "TRUE",
    "/computeMetadata/v1/instance/maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE",
}
_EVERY, _TIMEOUT = 1.0, 2.0  # seconds
_GIVEN_UP_AFTER = 60.0  # seconds without one answer: there is no such server


class NoticeWatch:
    """Watches the metadata server of this machine, where it has one, until there is a notice."""

    def __init__(self) -> None:
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A daemon: it may hang in a look-up of names where there is no such server, and then gives up.
        threading.Thread(target=self._watch, name="notices", daemon=True).start()

    def take(self) -> str | None:
        """Return the notice, once."""
        with contextlib.suppress(queue.Empty):
            return self._notices.get_nowait()
        return None

    def _watch(self) -> None:
        server, pause = os.environ.get(_SERVER) or _DEFAULT, threading.Event()
        answered, until = False, time.monotonic() + _GIVEN_UP_AFTER
        while answered or time.monotonic() < until:  # one that is there may be away for a while
            for path, word in _EVENTS.items():
                answer = _ask(server, path)
                answered = answered or answer is not None
                if answer == word:
                    self._notices.put(f"its provider says {path.rpartition('/')[2]}: {word}")
                    return
            pause.wait(_EVERY)


def _ask(server: str, path: str) -> str | None:
    connection = http.client.HTTPConnection(server, timeout=_TIMEOUT)
    try:
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        return answer.read(1024).decode(errors="replace").strip() if answer.status == http.client.OK else ""
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
