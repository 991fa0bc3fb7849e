"""A standard `Future` over a reference."""

from concurrent.futures import Future
from typing import Any

from fray._engine.pool import blocking
from fray._engine.refs import ERROR, LocalRef, Settlement, outcome, watch
from fray._engine.tasks import cancel_ref
from fray._values.errors import TaskCancelledError


class LocalFuture(Future[Any]):
    """Settles with its reference; waiting for it inside a task frees the task's place in the pool."""

    def __init__(self, ref: Any) -> None:
        super().__init__()
        self._ref = ref
        if not isinstance(ref, LocalRef):  # a stream, or a plain value
            self.set_result(ref)
        elif not watch(ref, self):
            self.notify(ref, [])

    def notify(self, source: LocalRef[Any], worklist: list[Settlement]) -> None:
        """Take over the reference's outcome."""
        if source._state == ERROR and isinstance(source._value[0], TaskCancelledError):
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        self.set_running_or_notify_cancel()
        try:
            self.set_result(outcome(source))
        except BaseException as error:  # noqa: BLE001 - the task's failure is the future's
            self.set_exception(error)

    def cancel(self) -> bool:
        """Cancel the task if it has not started; a stream is there from the first, and is closed instead."""
        return self.cancelled() or (isinstance(self._ref, LocalRef) and cancel_ref(self._ref))

    def result(self, timeout: float | None = None) -> Any:
        """Return the value, as `Future.result`."""
        with blocking():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, as `Future.exception`."""
        with blocking():
            return super().exception(timeout)
