"""How others reach a supervisor on its host: lines written to a named pipe in its job's record.

Files in the record say the same to a supervisor on another host (`STOP`, `RESTARTS`). On a full disk the pipe
works.
"""

import errno
import os
import signal
from types import FrameType

from fray._jobs.process_tree import SUPERVISORS_IGNORE
from fray._values.readable import readable

PIPE, STOP, RESTARTS = "control", "stop", "restarts"
WAKE = "look"  # the message on which a supervisor looks at once for what it waits for
DEFAULT_GRACE = 10.0  # seconds for a job that is stopped without a grace period
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


def create(record: str) -> None:
    """Make the pipe of a record, where its file system has such things."""
    try:
        os.mkfifo(os.path.join(record, PIPE), 0o600)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EEXIST):
            raise


def post_to_supervisor(record: str, message: str) -> bool:
    """Write one line to a job's supervisor; False when none reads on this host."""
    try:
        pipe = os.open(os.path.join(record, PIPE), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no reader, or no record
        return False
    try:
        os.write(pipe, f"{message}\n".encode())
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


def stop_filed(record: str) -> float | None:
    """Return the grace of a stop that was requested by the file; None where none was.

    Where the file cannot be read (too many open files, a server that does not answer) the next look reads it.
    """
    try:
        with open(os.path.join(record, STOP)) as file:
            grace = float(file.read())
            return grace if grace == grace else DEFAULT_GRACE  # a NaN equals nothing
    except OSError:  # there is none, as a rule
        return None
    except ValueError:
        return DEFAULT_GRACE


def file_restart(record: str, line: str) -> None:
    """Ask a supervisor on another host to start a replica again: it looks every second."""
    file = os.open(os.path.join(record, RESTARTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def restarts_filed(record: str) -> list[str]:
    """Return, once, the restarts that were requested by the file; see `file_restart`."""
    path = os.path.join(record, RESTARTS)
    taken = f"{path}.taken"
    try:
        os.replace(path, taken)  # a line that is written meanwhile goes to the same file, or to a new one
        with open(taken, errors="replace") as file:
            return file.read().splitlines()
    except OSError:  # there is none, as a rule
        return []


class ControlPipe:
    """Everything that may wake a supervisor: a message, a signal, a file that it watches, a time."""

    def __init__(self, record: str) -> None:
        try:
            # Open for writing too: without a writer the pipe would be readable all the time.
            self._pipe: int | None = os.open(os.path.join(record, PIPE), os.O_RDWR | os.O_NONBLOCK)
        except OSError:
            self._pipe = None
        self._signals, wake = os.pipe()
        for end in (self._signals, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, _noted)
        for number in set(SUPERVISORS_IGNORE).difference(_SIGNALS):
            signal.signal(number, signal.SIG_IGN)
        self._rest = b""
        self.signalled = False
        """Whether this process itself was asked to end."""

    def wait(self, seconds: float, files: list[int]) -> tuple[list[str], bool]:
        """Sleep until something happens; return the messages, and whether a file is readable."""
        own = [self._signals] if self._pipe is None else [self._signals, self._pipe]
        ready = readable([*own, *files], seconds)
        if self._signals in ready:
            self.signalled |= bool({signal.SIGTERM, signal.SIGINT} & set(_drain(self._signals)))
        messages: list[bytes] = []
        if self._pipe is not None and self._pipe in ready:
            *messages, self._rest = (self._rest + _drain(self._pipe)).split(b"\n")
        return [message.decode(errors="replace") for message in messages], not ready.isdisjoint(files)


def _noted(number: int, frame: FrameType | None) -> None:
    """A handler must exist for the signal to be written to the pipe."""


def _drain(end: int) -> bytes:
    try:
        return os.read(end, 65536)
    except BlockingIOError:
        return b""
