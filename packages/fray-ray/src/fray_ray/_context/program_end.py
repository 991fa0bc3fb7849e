"""How a context's work ends with its program, also where the program has dropped the context before."""

import weakref
from typing import Any

from fray.backend import ACTOR_SECONDS, end_at_exit, name_given_up
from fray_ray._connection import Connection
from fray_ray._context.cancelling import interrupt
from fray_ray._context.pending import Pending


def finish(pending: Pending, failed: bool) -> None:
    """Wait for tasks, and for a while for calls of actors; interrupt all where the program has failed."""
    if failed:
        interrupt_all(pending)
    elif late := pending.drain(actor_seconds=ACTOR_SECONDS):
        name_given_up(late)


def interrupt_all(pending: Pending) -> None:
    """Cancel what is not done, the last first, so that none starts in the place of another."""
    pending.look()
    interrupt(pending.all()[::-1])


class Submitted:
    """What a context has submitted, and its cluster: its program may drop the context before all is done."""

    def __init__(self, pending: Pending, connection: Connection) -> None:
        self.pending, self.connection = pending, connection

    @property
    def is_over(self) -> bool:
        """Whether the end of the program has nothing to do."""
        return not self.connection.up or not (self.pending.all() or self.connection.private)

    def at_program_end(self, failed: bool) -> None:
        """End as a context does that is still held."""
        if self.connection.up:
            finish(self.pending, failed)
            self.pending.close()
        self.connection.close()


_of_dropped: set[Submitted] = set()


def keep_when_dropped(context: Any, pending: Pending, connection: Connection) -> Any:
    """Keep what a context has submitted when nothing holds the context any more: its tasks run on.

    Returns:
        What has a method `detach`, to be called when the context has ended.
    """
    submitted = Submitted(pending, connection)
    end_at_exit(submitted)  # in the order in which contexts were made, not in that of their loss
    finalizer = weakref.finalize(context, _keep, submitted)
    finalizer.atexit = False
    return finalizer


def _keep(submitted: Submitted) -> None:
    _of_dropped.difference_update([other for other in list(_of_dropped) if other.is_over])
    if not submitted.is_over:
        submitted.pending.watch()  # results are released as they come
        _of_dropped.add(submitted)
