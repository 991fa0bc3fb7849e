"""A standard `Future` of a task: what the futures of backends have in common."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from fray._values.errors import TaskCancelledError


class TaskFuture(Future[Any]):
    """Raises TaskCancelledError, which is a CancelledError, where its task was cancelled.

    Args:
        cancel_task: Cancels the task and returns whether it was; called while the future is not done.
    """

    def __init__(self, cancel_task: Callable[[], bool]) -> None:
        super().__init__()
        self._cancel_task = cancel_task

    def cancel(self) -> bool:
        """Cancel the task, and this with it."""
        return self.cancelled() or (not self.done() and self._cancel_task() and super().cancel())

    def result(self, timeout: float | None = None) -> Any:
        """Return the value, as `Future.result`."""
        try:
            return super().result(timeout)
        except CancelledError:
            if not self.cancelled():
                raise  # the task's own
        raise TaskCancelledError("the task was cancelled")

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, as `Future.exception`."""
        try:
            return super().exception(timeout)
        except CancelledError:
            raise TaskCancelledError("the task was cancelled") from None
