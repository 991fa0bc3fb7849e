"""Counts what is under way in a context, so that `shutdown` can wait for it."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from fray._engine.pool import current_task
from fray._engine.refs import LOCK
from fray._values.errors import ContextClosedError, WrongProcessError


class Scope:
    """The tasks, calls and stream steps of one context; every change of the count is made under LOCK."""

    __slots__ = ("_closing", "_drained", "_ended", "_on_drained", "_outstanding", "_owner", "cancelling")

    def __init__(self, on_drained: Callable[[], None]) -> None:
        self._outstanding = 0
        self._closing = self._ended = False
        self._owner = 0  # in a forked child: the process whose scope this is
        self.cancelling = False  # what has not started is cancelled when its turn comes
        self._drained = threading.Event()
        self._on_drained = on_drained

    def enter(self) -> None:
        """Count one more; while closing, only what runs inside may still add to it.

        Raises:
            ContextClosedError: The context is shut down, or shutting down and the caller is outside.
            WrongProcessError: This is a forked child of the process that made the context.
        """
        self.check_owner()
        with LOCK:
            if self._closing and (self.cancelling or not self._outstanding or not self.inside()):
                raise ContextClosedError("the context was shut down; make a new one with create_context")
            self._outstanding += 1

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the block as under way, or raise as `enter`: `on_drained` finds all that the block made."""
        self.enter()
        try:
            yield
        finally:
            with LOCK:
                last = self.leave()
            if last:
                self.on_drained()

    @property
    def foreign(self) -> bool:
        """Whether this is a forked child, in which nothing of the context can happen."""
        return bool(self._owner)

    def check_owner(self) -> None:
        """Raise in a forked child."""
        if self._owner:
            raise WrongProcessError(
                f"a context of process {self._owner} was used in its forked child {os.getpid()}, which has "
                "none of the context's threads and workers: make one there, with create_context"
            )

    def disown(self) -> None:
        """In a forked child: count nothing and end nothing any more."""
        self._owner = os.getppid()

    def inside(self) -> bool:
        """Return whether this thread runs something that is counted here."""
        task = current_task()
        return task is not None and task.scope is self

    def rejoin(self) -> None:
        """Under LOCK: count one more that was counted before, closing or not."""
        self._outstanding += 1

    def leave(self) -> bool:
        """Under LOCK: count one less; True where it was the last and `on_drained` must be called."""
        self._outstanding -= 1
        return self._closing and not self._outstanding

    def close(self, *, cancel: bool) -> None:
        """Take nothing more from outside; with `cancel` nothing more starts at all."""
        with LOCK:
            self._closing = True
            self.cancelling = self.cancelling or cancel
            empty = not self._outstanding
        if empty:
            self.on_drained()

    def on_drained(self) -> None:
        """Outside LOCK: everything is done."""
        with LOCK:
            ended, self._ended = self._ended, True
        if not ended:
            self._on_drained()
            self._drained.set()

    def wait(self) -> None:
        """Block until everything is done; needs `close` before."""
        self._drained.wait()
