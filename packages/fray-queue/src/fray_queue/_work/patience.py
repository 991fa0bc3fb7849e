"""A call to a queue that fails is repeated, ever less often, until the pool is stopped."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fray import LeaseExpiredError, SerializationError, UnsupportedError, WrongProcessError
from fray.backend import retry_delays
from fray_queue._errors import QueueExistsError, QueueNotFoundError, QueueVersionError
from fray_queue._work.options import WorkSummary

R = TypeVar("R")

_log = logging.getLogger("fray.queue")
_LONGEST_PAUSE = 15.0  # seconds between two tries of a queue that fails
# Errors of the program that no waiting resolves, unless the same call succeeded before.
_WRONG = (
    PermissionError,  # of a disk, and the refusals of servers and engines
    QueueExistsError,
    QueueNotFoundError,
    QueueVersionError,
    UnsupportedError,
    ValueError,  # what is there is no queue
    WrongProcessError,
)
# Errors of an argument, which a repetition does not change.
_ANSWERS: tuple[type[Exception], ...] = (LeaseExpiredError, SerializationError)


class GivenUpError(Exception):
    """The pool ends, and the queue still fails."""


class Patience:
    """Calls a queue until it answers.

    Args:
        over: Set when no call is to be repeated.
    """

    def __init__(self, summary: WorkSummary, over: asyncio.Event) -> None:
        self._summary, self._over = summary, over
        self._answered = False  # whether the queue ever did

    async def ask(
        self,
        call: Callable[..., Awaitable[R]],
        *args: Any,
        answers: tuple[type[Exception], ...] = (),
        **options: Any,
    ) -> R:
        """Call until it answers.

        A queue that never answered is another matter: there the call itself is wrong, and raises.

        Args:
            answers: More errors that are the caller's to handle.

        Raises:
            GivenUpError: It was stopped.
        """
        failing_since: float | None = None
        for pause in retry_delays(longest=_LONGEST_PAUSE):
            try:
                answer = await call(*args, **options)
            except _ANSWERS + answers:
                raise
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    raise
                if not self._answered and isinstance(error, _WRONG):
                    raise
                self._summary.queue_failures += 1
                failing_since = failing_since or time.monotonic()
                _log.warning(
                    "the queue failed, and the call is repeated: %s: %s", type(error).__name__, error
                )
            else:
                self._answered = True
                if failing_since is not None:
                    _log.info("the queue answers again, after %.1f s", time.monotonic() - failing_since)
                return answer
            if self._over.is_set() or await self._is_over(pause):
                raise GivenUpError("the pool ended first")
        raise AssertionError("unreachable: the delays never end")

    async def _is_over(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True


def _is_cancelled() -> bool:
    """Whether this task was cancelled; else it is the queue that raised CancelledError."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
