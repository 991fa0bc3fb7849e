"""The notice that a replica gets when its host is taken away."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from fray._values.delays import poll_until

NOTICE_VARIABLE = "FRAY_PREEMPTION_NOTICE"
_LONGEST_PAUSE = 0.1  # seconds between two looks
_BEHIND = 0.2  # seconds by which a notice may come after its SIGTERM


class PreemptionNotice:
    """Whether and when the host of this replica will be taken away; like an `Event` that the cluster sets.

    Args:
        path: The file that the cluster writes the time to; None if there is none.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._deadline: float | None = None

    def is_set(self) -> bool:
        """Whether the host is to go."""
        return self._read() is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the host is to go, or for `timeout` seconds; return whether it is."""
        return bool(poll_until(lambda: self.is_set() or None, timeout, longest=_LONGEST_PAUSE))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the replica is killed, 0 when that is over; None while its host stays."""
        deadline = self._read()
        return None if deadline is None else max(0.0, deadline - time.time())

    def _read(self) -> float | None:
        # Each time: the cluster may learn more exactly when it is.
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):  # not written yet, or removed with the attempt
                self._deadline = float(self._path.read_text())
        return self._deadline


def preemption_notice() -> PreemptionNotice:
    """Return the notice of this replica, which is set when its host will be taken away.

    It works the same on every cluster whose hosts can be taken away. A program that checks it can save its
    state in time. Outside of a job the notice is never set.

    With the notice the replica gets SIGTERM, which would end it before it can check. So a first call from the
    main thread of a replica that has no handler for SIGTERM installs one. It lets this process go on if there
    is a notice; any other SIGTERM ends it as before. A handler of your own, installed before or after the
    call, takes its place.
    """
    path = os.environ.get(NOTICE_VARIABLE)
    notice = PreemptionNotice(path)
    if path is not None and threading.current_thread() is threading.main_thread():
        _outlive_the_signal_of(notice)
    return notice


def _outlive_the_signal_of(notice: PreemptionNotice) -> None:
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    owner = os.getpid()

    def on_sigterm(number: int, _: Any) -> None:
        # Not in a forked child, which others end by this signal: multiprocessing's, say, and wait for it.
        if os.getpid() == owner and notice.wait(_BEHIND):
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, on_sigterm)
