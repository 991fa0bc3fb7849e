"""A deadline for every test of the kit: a backend that hangs fails, with the stacks of all threads."""

import contextlib
import faulthandler
import signal
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType

from _pytest.outcomes import OutcomeException

SECONDS = 110.0
"""That a test of the kit may take."""
_AGAIN = 10.0
"""Seconds until what hangs after that, in the clean-up of the test, fails as well."""


class DeadlinePassedError(OutcomeException):
    """A test hung; the message holds the stacks of all threads when the time was up.

    No `except Exception` holds it up, and Hypothesis does not look for a smaller program that hangs. Pytest
    knows it as a failure: it cleans up the other fixtures of a test whose clean-up hangs.
    """


def _fails_a_test(frame: FrameType | None) -> bool:
    """Whether pytest makes a test's failure of what is raised here; between tests it would end the run."""
    while frame is not None:
        if frame.f_code.co_name == "from_call" and frame.f_code.co_filename.endswith("runner.py"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def deadline(seconds: float = SECONDS, again: float = _AGAIN) -> Iterator[None]:
    """Fail the block when it takes longer, also where it waits for a lock; in the main thread only.

    Raises:
        DeadlinePassedError: The time was up.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main or not hasattr(signal, "SIGUSR2"):
        yield
        return
    over = threading.Event()

    def fail(_number: int, frame: FrameType | None) -> None:
        if over.is_set() and _fails_a_test(frame):
            raise DeadlinePassedError(f"not done within {seconds:g} s; where all threads were:\n{_stacks()}")

    done = threading.Event()

    def interrupt() -> None:
        patience = seconds
        while not done.wait(patience):
            over.set()
            if main.ident is not None:
                signal.pthread_kill(main.ident, signal.SIGUSR2)
            patience = again

    before = signal.signal(signal.SIGUSR2, fail)
    timer = threading.Thread(target=interrupt, name="fray-deadline", daemon=True)
    timer.start()
    try:
        yield
    finally:
        over.clear()
        done.set()
        timer.join()
        signal.signal(signal.SIGUSR2, before)


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
