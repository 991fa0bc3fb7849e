"""The contexts of one process: inline, and in threads."""

import atexit
import os
from weakref import WeakSet

from fray import DeadlockError
from fray._engine.actors import Mailbox
from fray._engine.context import InProcessContext
from fray._engine.pool import ThreadPool
from fray.backend import check_count
from fray_local._inline import InlineMailbox, InlinePool, inside_an_actor


class SyncContext(InProcessContext):
    """Runs every task inside the call that submits it: what a debugger wants, and the plainest oracle.

    Args:
        check_serialization: Pickle arguments and results as a cluster would, so that what cannot
            travel is found here, and so is code that relies on shared memory.
    """

    def __init__(self, *, check_serialization: bool = False) -> None:
        super().__init__(InlinePool(), check_serialization=check_serialization, stream_buffer=1)

    def _mailbox(self, label: str) -> Mailbox:
        return InlineMailbox()

    def _check_progress(self, timeout: float | None) -> None:
        if timeout is None and inside_an_actor():
            raise DeadlockError(
                "an actor's method waits for a call that can only run after it: an actor runs one call at "
                "a time; call the method directly on self instead of through the handle"
            )

    def _map_window(self) -> int:
        return 1


class ThreadContext(InProcessContext):
    """Runs tasks in threads of this process: no copies, no isolation, nesting to any depth at any size.

    Args:
        max_workers: Tasks that run at the same time; a task that waits for another does not count.
            By default as many as the standard library's ThreadPoolExecutor: CPUs + 4, at most 32.
        check_serialization: Pickle arguments and results as a cluster would.
        stream_buffer: Items that a generator task may be ahead of its consumer.
    """

    def __init__(
        self, max_workers: int | None = None, *, check_serialization: bool = False, stream_buffer: int = 16
    ) -> None:
        workers = min(32, (os.cpu_count() or 1) + 4) if max_workers is None else max_workers
        check_count("max_workers", workers, 1)
        self._workers = workers
        pool = ThreadPool(workers, "fray-worker")
        super().__init__(pool, check_serialization=check_serialization, stream_buffer=stream_buffer)
        _open_contexts.add(self)

    def _map_window(self) -> int:
        return max(16, 4 * self._workers)


# At exit, what a program submitted and never waited for still gets done, as in the standard library.
_open_contexts: WeakSet[ThreadContext] = WeakSet()


@atexit.register
def _shutdown_open_contexts() -> None:
    for context in list(_open_contexts):
        context.shutdown()
