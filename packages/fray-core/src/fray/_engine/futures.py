"""A standard `Future` over a reference."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from fray._engine.calls import set_current_call
from fray._engine.refs import ERROR, EngineRef, outcome, unwatch, watch
from fray._engine.waiting import blocking, patient, seconds


class EngineFuture(Future[Any]):
    """Settles with its reference; waiting for it inside a task frees the task's place.

    Args:
        call_back: Runs what loads the outcome and calls the callbacks, away from threads that serve others.
    """

    def __init__(self, ref: Any, call_back: Callable[[Callable[[], object]], None]) -> None:
        super().__init__()
        self._ref, self._call_back = ref, call_back
        self._call: Any = None
        if not isinstance(ref, EngineRef):  # a stream, or a plain value
            self.set_result(ref)
            return
        self._call = ref.call
        if not watch(ref, self):
            self._call = None
            self._copy()

    def notify(self, source: EngineRef[Any], ready: list[Any]) -> None:
        """Take over the reference's outcome."""
        call, self._call = self._call, None
        # The call is counted until its watchers were notified, so a callback on this thread is inside of it.
        before = set_current_call(call)
        try:
            self._call_back(self._copy_and_report)
        finally:
            set_current_call(before)

    def _copy_and_report(self) -> None:
        try:
            self._copy()
        except BaseException:  # a callback's; the standard library has reported an Exception
            if threading.current_thread() is threading.main_thread():
                raise  # it ends the program
            sys.excepthook(*sys.exc_info())

    def _copy(self) -> None:
        ref = self._ref
        if ref.state == ERROR and ref.content.cancelled:
            try:
                super().cancel()
            finally:
                self.set_running_or_notify_cancel()
            return
        self.set_running_or_notify_cancel()
        try:
            value = outcome(ref)
        except BaseException as error:  # noqa: BLE001 - the task's failure is the future's
            self.set_exception(error)
        else:
            self.set_result(value)

    def cancel(self) -> bool:
        """Cancel the task; a stream is there from the first, and is closed instead."""
        if self.cancelled():
            return True
        call = self._ref.call if isinstance(self._ref, EngineRef) else None
        return call is not None and bool(call.cancel())

    def result(self, timeout: float | None = None) -> Any:
        """Return the value, as `Future.result`; of a cancelled task it raises the TaskCancelledError."""
        if not self.done():
            self._await(timeout)
        if self.cancelled():
            outcome(self._ref)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, as `Future.exception`; for a cancelled task, see `result`."""
        if not self.done():
            self._await(timeout)
        if self.cancelled():
            outcome(self._ref)
        return super().exception(0)

    def abandon(self) -> None:
        """Settle no more: nobody waits for it. The task goes on."""
        if isinstance(self._ref, EngineRef):
            unwatch(self._ref, self)

    def _await(self, timeout: float | None) -> None:
        if self._call is not None:
            self._call.scope.check_owner()  # in a forked child nothing would ever come
        with blocking(timeout, (self._ref,)), patient((self._ref,)) as wait:
            wait.block(self._settled, seconds(timeout))

    def _settled(self, timeout: float | None) -> bool:
        try:
            super().exception(timeout)
        except FutureTimeoutError:
            return False
        except CancelledError:
            return True
        return True
