"""What the attempts of a run used over time: a file beside the job's log, which the dashboard reads out.

A line for each sample: replica, attempt, time, memory, CPU time. Each attempt's samples are bounded where
they are taken (`UsageHistory`); of many attempts each has fewer here, so that the file stays small.
"""

import contextlib
import time
from pathlib import Path

from fray.backend import replace_file
from fray_ray._log_names import usage_name
from fray_ray._ray_internals.processes import log_folder

_MOST = 24_000  # samples of all attempts: less than a megabyte
_WORDS = 3  # of a line: the last is the sample
_BETWEEN = 2.0  # seconds between two times that it is written


def usage_file(submission: str) -> str:
    """Return where the scheduler writes what a job uses, on this node."""
    return f"{log_folder()}/{usage_name(submission)}"


class UsageFile:
    """That of one run of a job; its event loop alone uses it.

    Args:
        path: None where nobody reads it.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._lines: dict[tuple[int, int], list[str]] = {}
        self._changed = False
        self._next = 0.0
        if path is not None:
            self._read(path)

    def _read(self, path: str) -> None:
        """Take what another scheduler has written."""
        # Anybody may have written there: a line of other bytes is none of ours.
        with contextlib.suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.rstrip("\n").split(" ", 2)
                if len(words) == _WORDS and words[0].isdecimal() and words[1].isdecimal():
                    self._lines.setdefault((int(words[0]), int(words[1])), []).append(words[2])

    def take(self, replica: int, attempt: int, samples: str) -> None:
        """Take all samples of an attempt, as `UsageHistory` writes them, in place of those before."""
        before = self._lines.get((replica, attempt - 1))
        if before is not None and (replica, attempt) not in self._lines:  # that one has ended
            self._lines[replica, attempt - 1] = _thinned(before, self._most())
        self._lines[replica, attempt] = samples.split("\n")[:-1]  # one that has no end yet is not read
        self._changed = True

    def latest(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Return the last memory and the CPU time of each attempt, by replica and attempt."""
        last = {attempt: lines[-1] for attempt, lines in self._lines.items() if lines}
        found = {}
        for attempt, line in last.items():
            with contextlib.suppress(ValueError):  # a file that the attempt itself can write to
                _, memory, cpu_time = line.split()
                found[attempt] = int(memory), float(cpu_time)
        return found

    def write(self, *, last: bool = False) -> None:
        """Write the file where there is something new and it was not written a moment ago.

        Args:
            last: Whether this is the last time.
        """
        if self._path is None or not self._changed or (time.monotonic() < self._next and not last):
            return
        self._changed, self._next = False, time.monotonic() + _BETWEEN
        most = self._most()
        text = "".join(
            f"{replica} {attempt} {line}\n"
            for (replica, attempt), lines in sorted(self._lines.items())
            for line in _thinned(lines, most)
        )
        try:
            replace_file(self._path, text.encode())
        except OSError:  # a full disk costs a picture, not the job
            return

    def _most(self) -> int:
        """Return how many samples each attempt may have."""
        return max(1, _MOST // max(1, len(self._lines)))


def _thinned(lines: list[str], most: int) -> list[str]:
    """Return every second line, or fourth, … before the last one, and that, where there are too many."""
    step = 1
    while len(lines) > most * step:
        step *= 2
    return lines[::-step][::-1]
