"""The one log of a job in Ray, taken apart into those of its replicas and their attempts."""

import re
import time
from collections.abc import Callable

_LINE = re.compile(r"\[replica-(\d+)\] ?(.*)", re.DOTALL)
_BEGIN = re.compile(r"\[fray\] replica (\d+) starts, attempt (\d+)")
_FRESH = 0.05  # seconds
_SHARE = 0.1  # of the time that reading a long log may take


class JobLog:
    """What a job has written so far.

    Args:
        fetch: Returns the whole log; Ray gives no parts of it.
    """

    def __init__(self, fetch: Callable[[], str]) -> None:
        self._fetch = fetch
        self._seen = 0
        self._parts: dict[tuple[int, int], bytearray] = {}
        self._attempts: dict[int, int] = {}
        self._rests_until = 0.0

    def read(self, replica: int | None, attempt: int, offset: int) -> bytes:
        """Return a piece of a log, as `fray.cluster.follow_logs` asks for it."""
        if replica is None:
            return b""
        if len(self._parts.get((replica, attempt), b"")) <= offset and time.monotonic() > self._rests_until:
            self._update()
        return bytes(self._parts.get((replica, attempt), b"")[offset:])

    def stale(self) -> None:
        """Have the next read fetch: what was written until now must be in it."""
        self._rests_until = 0.0

    def _update(self) -> None:
        begun = time.monotonic()
        text = self._fetch()
        end = text.rfind("\n") + 1  # a line in the making is read when it is complete
        for line in text[self._seen : end].split("\n")[:-1]:  # other marks of an end are the replica's text
            self._take(line)
        self._seen = max(self._seen, end)
        took = time.monotonic() - begun
        self._rests_until = begun + took + max(_FRESH, took / _SHARE - took)

    def _take(self, line: str) -> None:
        if begin := _BEGIN.match(line):
            self._attempts[int(begin[1])] = int(begin[2])
        elif found := _LINE.match(line):
            replica = int(found[1])
            part = self._parts.setdefault((replica, self._attempts.get(replica, 1)), bytearray())
            part += found[2].encode() + b"\n"
