"""What the attempts of a job write, as its supervisor sees it: where it goes, and how it ends."""

from __future__ import annotations

import os

from fray._jobs.logs.pump import OutputPump
from fray._jobs.records.files import LOGS
from fray._jobs.records.status_file import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def log_path(record: str, replica: int | None, attempt: int) -> str:
    """Return where an attempt writes; for replica None, what the job wrote before its replicas started."""
    return os.path.join(record, LOGS, log_name(replica, attempt))


def log_name(replica: int | None, attempt: int) -> str:
    """Return the name of that file."""
    return "environment.log" if replica is None else f"replica-{replica}.attempt-{attempt}.log"


class AttemptLogs:
    """The logs of one job."""

    def __init__(self, record: str, limit: int | None = None) -> None:
        self._record, self._limit = record, limit
        self._pump = OutputPump()

    def open(self, replica: int | None, attempt: int) -> int:
        """Begin a log; return the pipe that an attempt is to write to, which the caller closes.

        For replica None: the log of what prepares the job.
        """
        return self._pump.open(log_path(self._record, replica, attempt), self._limit)

    def readable(self) -> list[int]:
        """Return the pipes that have output to be copied when they are readable."""
        return self._pump.readable()

    def copy(self) -> None:
        """Copy the output that is there, without waiting for more, and try again what the disk refused."""
        self._pump.copy()

    def settle(self, replica: int | None, attempt: int) -> None:
        """An attempt has ended: all that it wrote is in its log after this."""
        self._pump.settle(log_path(self._record, replica, attempt))

    def close(self) -> None:
        """The tree has ended: nobody writes any more."""
        self._pump.close()

    def last_lines(self, replica: int | None, attempt: int, secrets: Iterable[str]) -> str:
        """Return the end of a log as the end of a message, without what is secret."""
        from fray._jobs.logs.last_lines import last_lines  # of attempts that failed alone

        return last_lines(log_path(self._record, replica, attempt), secrets)

    def variables(self, replica: int, attempt: int) -> dict[str, str]:
        """Return the variable by which a replica finds the notice of its preemption."""
        return {"FRAY_PREEMPTION_NOTICE": self._notice(replica, attempt)}

    def notify(self, replica: int, attempt: int, deadline: float) -> None:
        """Write the notice: when the host of a replica goes."""
        path = self._notice(replica, attempt)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            replace_file(path, f"{deadline}\n".encode())
        except OSError:
            return  # its SIGTERM says it too

    def _notice(self, replica: int, attempt: int) -> str:
        return os.path.join(self._record, "preemption", f"replica-{replica}.attempt-{attempt}")
