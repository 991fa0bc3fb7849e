"""How others speak to a supervisor: lines written to the pipe in its job's record."""

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIPE = "control"


def create(job_dir: str) -> None:
    """Make the pipe of a job."""
    os.mkfifo(os.path.join(job_dir, _PIPE), 0o600)


def post(job_dir: str, message: str) -> bool:
    """Write one line to a job's supervisor; False when none reads."""
    try:
        pipe = os.open(os.path.join(job_dir, _PIPE), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no reader, or no record
        return False
    try:
        os.write(pipe, f"{message}\n".encode())
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


class StopRequested(Exception):  # noqa: N818 - not an error
    """Somebody wants the job to end, and gives it so many seconds."""

    def __init__(self, grace: float) -> None:
        super().__init__(grace)
        self.grace = grace


class Mailbox:
    """Everything that may wake a supervisor: a message, the end of a child, a signal, a time."""

    def __init__(self, job_dir: str) -> None:
        # Open for writing too: without a writer the pipe would be readable all the time.
        self._pipe = os.open(os.path.join(job_dir, _PIPE), os.O_RDWR | os.O_NONBLOCK)
        self._signals, wake = os.pipe()
        for end in (self._signals, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _noted)
        for number in (signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self._rest = b""
        self._notices: list[tuple[int, int, float]] = []

    def notices(self) -> list[tuple[int, int, float]]:
        """Return the preemption notices since the last call: replica, attempt, seconds of grace."""
        notices, self._notices = self._notices, []
        return notices

    def wait(self, seconds: float | None = None) -> None:
        """Sleep until something happens, at most so long.

        Raises:
            StopRequested: That is what happened.
        """
        ready, _, _ = select.select([self._pipe, self._signals], [], [], seconds)
        if self._signals in ready and {signal.SIGTERM, signal.SIGINT} & set(_drain(self._signals)):
            raise StopRequested(10.0)
        if self._pipe in ready:
            *lines, self._rest = (self._rest + _drain(self._pipe)).split(b"\n")
            notices = [line.split()[1:] for line in lines if line.startswith(b"preempt ")]
            self._notices += [
                (int(replica), int(attempt), float(grace)) for replica, attempt, grace in notices
            ]
            stops = [line for line in lines if line.startswith(b"stop ")]
            if stops:
                raise StopRequested(min(float(line[5:]) for line in stops))

    def wait_until(self, deadline: float | None, at_most: float = 3600.0) -> None:
        """Sleep until something happens or a moment of `time.monotonic` comes."""
        self.wait(at_most if deadline is None else min(at_most, max(0.0, deadline - time.monotonic())))


def _noted(number: int, frame: "Any") -> None:
    """A handler must exist for the signal to be written to the pipe."""


def _drain(end: int) -> bytes:
    try:
        return os.read(end, 65536)
    except BlockingIOError:
        return b""
