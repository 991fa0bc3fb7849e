"""What an attempt used over time, on its way from the process that measures it to the scheduler."""

import time
from pathlib import Path

_FIRST, _LONGEST = 2.0, 30.0  # seconds between two times that it is sent


def samples_of(private: str) -> str:
    """Return the samples of an attempt by the folder that it has to itself: a line each; "" for none."""
    try:
        return (Path(private) / "usage" / "replica-0.attempt-0").read_text()
    except OSError:
        return ""


class NewSamples:
    """Returns samples when they changed, and less and less often: many replicas report to one scheduler."""

    def __init__(self, private: str) -> None:
        self._private = private
        self._pause = _FIRST
        self._next = time.monotonic() + _FIRST
        self._sent = ""

    def take(self) -> str | None:
        """Return all samples, where there are others and it is time; else None."""
        if time.monotonic() < self._next:
            return None
        self._pause = min(_LONGEST, self._pause * 1.5)
        self._next = time.monotonic() + self._pause
        samples = samples_of(self._private)
        if samples == self._sent:
            return None
        self._sent = samples
        return samples
