"""What is under way in a context, so that `shutdown` can wait for it."""

import os
import threading
from collections.abc import Callable
from typing import Any

from fray._values.errors import ContextClosedError, WrongProcessError


class Scope:
    """The calls of one context that are not settled and not parked.

    It takes no lock: a call that is added to `open` first, and then finds neither `closing` nor `owner`, is
    counted; for others there is `enter`. The state changes before the calls are looked at, so that one of the
    two always sees the other.
    """

    __slots__ = ("_drained", "_end", "_unended", "cancelling", "closing", "open", "owner")

    def __init__(self, on_drained: Callable[[], None]) -> None:
        self.open: set[Any] = set()
        self.closing = False
        self.cancelling = False  # what has not started is cancelled when its turn comes
        self.owner = 0  # in a forked child: the process whose scope this is
        self._drained = threading.Event()
        self._end = on_drained
        self._unended = True

    def enter(self, call: Any, inside: bool) -> None:
        """Count a call; while closing, only what runs inside may still add to it.

        Raises:
            ContextClosedError: The context is shut down, or shutting down and the caller is outside.
            WrongProcessError: This is a forked child of the process that made the context.
        """
        open_calls = self.open
        open_calls.add(call)
        if self.closing or self.owner:
            if not self.owner and inside and not self.cancelling and len(open_calls) > 1:
                return
            self.leave(call)
            self.check_owner()
            raise ContextClosedError("the context was shut down; make a new one with create_context")

    def check_open(self) -> None:
        """Raise where nothing more may be submitted."""
        self.check_owner()
        if self.closing:
            raise ContextClosedError("the context was shut down; make a new one with create_context")

    def leave(self, call: Any) -> None:
        """Count a call no more."""
        self.open.discard(call)
        self.check_drained()

    def check_drained(self) -> None:
        """End it where that was the last call, which is in `open` no more, and it is closing."""
        if self.closing and not self.open:
            self._drain()

    def close(self, *, cancel: bool) -> None:
        """Take nothing more from outside; with `cancel` nothing more starts at all."""
        self.cancelling = self.cancelling or cancel
        self.closing = True
        if not self.open:
            self._drain()

    def _drain(self) -> None:
        try:
            del self._unended
        except AttributeError:
            return
        try:
            self._end()
        except BaseException:  # Ctrl-C: the next `close` does the rest
            self._unended = True
            raise
        finally:
            self._drained.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until everything is done, after `close`; False where `timeout` seconds passed first."""
        return self._drained.wait(timeout)

    @property
    def foreign(self) -> bool:
        """Whether this is a forked child, in which nothing of the context can happen."""
        return bool(self.owner)

    def check_owner(self) -> None:
        """Raise in a forked child."""
        if self.owner:
            raise WrongProcessError(
                f"a context of process {self.owner} was used in its forked child {os.getpid()}, which has "
                "none of the context's threads and workers: make one there, with create_context"
            )

    def disown(self) -> None:
        """In a forked child: count nothing and end nothing any more."""
        self.owner = os.getppid()
