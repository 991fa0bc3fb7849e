"""Futures of references: the event loop settles them, their reader unpickles."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from fray._engine.futures import LocalFuture

if TYPE_CHECKING:
    from fray_local._process.context import ProcessContext


class ProcessFuture(LocalFuture):
    """A future that the loop settles; its callbacks may use the context."""

    def __init__(self, ref: Any, context: "ProcessContext") -> None:
        self._context = context
        super().__init__(ref)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn` with this future when it is done; see `Future.add_done_callback`."""
        super().add_done_callback(partial(self._context.call_back, fn))
