"""The line of gangs that wait for slices, as it stands in the head's key-value store."""

import json
import time
from dataclasses import asdict

from fray_ray import _job_kv
from fray_ray._head.line import Ticket, turns

_BELOW = "fray-line/"
_STALE = 60.0  # seconds after which a ticket that nobody has renewed is of a driver that was killed


class Line:
    """One gang's place in the line; it has none before the first `turn`, and after `leave`.

    Args:
        since: When its job was submitted.
        kind: What slices it can use.
    """

    def __init__(self, since: float, submission: str, kind: str, choices: tuple[int, ...]) -> None:
        self._since, self._submission, self._kind, self._choices = since, submission, kind, choices
        self._waits = False

    def turn(self, *, held: int, free: int, most: int) -> int:
        """Return for how many slices the gang may ask now, and tell the others how it stands.

        Args:
            held: How many it has.
            free: How many that it could use nobody has.
            most: How many there are that it could use.
        """
        own = Ticket(self._since, self._submission, self._kind, self._choices, most, held)
        _job_kv.keep(_BELOW + self._submission, json.dumps({**asdict(own), "seen": time.time()}).encode())
        self._waits = True
        others = [ticket for ticket in _tickets() if ticket.submission != self._submission]
        return turns([own, *others], {self._kind: free})[self._submission]

    def leave(self) -> None:
        """Give up the place: the gang has all, or wants nothing any more."""
        if self._waits:
            _job_kv.delete(_BELOW + self._submission)
            self._waits = False


def _tickets() -> list[Ticket]:
    found = []
    for name in _job_kv.names_below(_BELOW):
        data = _job_kv.fetch(name)
        if data is None:
            continue
        said = json.loads(data)
        if time.time() - said.pop("seen") > _STALE:
            _job_kv.delete(name)
            continue
        found.append(Ticket(**{**said, "choices": tuple(said["choices"])}))
    return found
