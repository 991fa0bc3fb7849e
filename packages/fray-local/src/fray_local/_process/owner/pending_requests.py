"""A worker's request that has no answer yet: what it waits for, and the slot that it lends meanwhile."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fray.backend import pack_exception, watch_for
from fray_local._process.protocol.values import Blob

if TYPE_CHECKING:
    from fray_local._process.owner.worker_connection import WorkerConnection


class PendingRequest:
    """A request of a worker, until it is answered."""

    def __init__(self, worker: "WorkerConnection", number: int) -> None:
        self.worker, self._number = worker, number
        self._watch: Any = None

    def wait_for(
        self, sources: Sequence[Any], needed: int, act: Callable[[], None], *, stop_on_error: bool = False
    ) -> None:
        """Let `act` answer when something has happened; until then the worker's slot is free."""
        self.worker.pending_requests[self._number] = self
        self.worker.owner.lend(self.worker, self)

        def answer() -> None:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - a value that cannot travel, say
                self.fail(error)

        watch = watch_for(sources, needed, answer, stop_on_error=stop_on_error)
        if self._number in self.worker.pending_requests and self._watch is None:
            self._watch = watch
        else:
            watch.stop()

    def answer(self, answer: Any, blobs: Sequence[Blob] = ()) -> None:
        """Answer, and take the slot again."""
        self.withdraw()
        self.worker.answer(self._number, None, answer, blobs)

    def fail(self, error: BaseException | bytes) -> None:
        """Answer with an exception, which may be packed."""
        self.withdraw()
        data = error if isinstance(error, bytes) else pack_exception(error, traceback_text="")
        self.worker.answer(self._number, data, None)

    def withdraw(self) -> None:
        """Stop waiting: the answer is there, or nobody wants it."""
        if self.worker.pending_requests.pop(self._number, None) is not None:
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.stop()
            self.worker.owner.reclaim(self.worker, self)
