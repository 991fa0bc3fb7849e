"""What attempts used over time, as files of the record. Imports little, as a supervisor does.

RECORD/usage/replica-N.attempt-M    a line for each sample: time, memory, CPU time

A file has at most `MOST` samples: where there would be more, every two become one, and later ones stand
twice as far apart. So a record stays small, whatever the time that a job runs.
"""

from __future__ import annotations

import os

from fray._jobs.records.status_file import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._values.usage import UsageSample

FOLDER = "usage"
MOST = 240
_EVERY = 1.0  # seconds between the first samples
_TOO_MUCH = 1e18  # of seconds or bytes: nothing that was measured


class UsageHistory:
    """That of one attempt; an attempt of less than a second leaves none."""

    def __init__(self, record: str, replica: int, attempt: int) -> None:
        self._path = os.path.join(record, FOLDER, f"replica-{replica}.attempt-{attempt}")
        self._samples: list[tuple[float, int, float]] = []
        self._every = _EVERY
        self._next = 0.0
        self._highest = 0
        self._whole = False  # the file, as far as it was written

    def note(self, now: float, memory: int, cpu_time: float, *, last: bool = False) -> None:
        """Take a measurement; it is written when a sample is due.

        Args:
            last: Whether the attempt has ended: then it is due, if there is another one.
        """
        self._highest = max(self._highest, memory)
        early = self._next - self._every <= now < self._next  # before that: the clock was set back
        if early and not (last and self._samples):
            return
        self._samples.append((round(now, 2), self._highest, round(cpu_time, 3)))
        self._next, self._highest = now + self._every, 0
        try:
            self._write()
        except OSError:  # a full disk costs a picture, not the job
            self._whole = False

    def _write(self) -> None:
        if len(self._samples) > MOST:
            pairs = zip(self._samples[::2], self._samples[1::2], strict=False)
            odd = self._samples[-1:] if len(self._samples) % 2 else []
            self._samples = [(b[0], max(a[1], b[1]), b[2]) for a, b in pairs] + odd
            self._every *= 2
        elif self._whole:
            with open(self._path, "a") as file:
                file.write(_line(self._samples[-1]))
            return
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            os.mkdir(folder, mode=0o700)  # the record's folder is not created again: it is removed by now
        replace_file(self._path, "".join(map(_line, self._samples)).encode())
        self._whole = True


def read_usage(record: str) -> list[UsageSample]:
    """Return what is known of all attempts of a job, by replica, attempt and time."""
    from fray._values.usage import UsageSample  # not in a supervisor

    folder = os.path.join(record, FOLDER)
    found: list[UsageSample] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        numbers = name.removeprefix("replica-").split(".attempt-")
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            continue
        replica, attempt = map(int, numbers)
        with open(os.path.join(folder, name), errors="replace") as file:
            lines = file.read().split("\n")[:-1]  # one that has no end yet is not read
        for line in lines:
            try:
                when, memory, cpu_time = line.split()
                sample = UsageSample(
                    replica=replica,
                    attempt=attempt,
                    time=float(when),
                    memory=int(memory),
                    cpu_time=float(cpu_time),
                )
            except ValueError:  # a damaged line costs a sample
                continue
            if all(0 <= number < _TOO_MUCH for number in (sample.time, sample.memory, sample.cpu_time)):
                found.append(sample)
    return sorted(found, key=lambda sample: (sample.replica, sample.attempt, sample.time))


def _line(sample: tuple[float, int, float]) -> str:
    when, memory, cpu_time = sample
    return f"{when} {memory} {cpu_time}\n"
