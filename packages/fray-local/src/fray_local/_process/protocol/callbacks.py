"""Where callbacks run: not in the thread that reads messages, for which their own calls would wait."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fray import TaskCancelledError

if TYPE_CHECKING:
    from concurrent.futures import Future


class CallbackThread:
    """Does what may block, one after the other, in a thread that lives while there is something to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acts: deque[Callable[[], object]] = deque()
        self._busy = False

    def do(self, act: Callable[[], object]) -> None:
        """Do something after what was asked before; from any thread."""
        with self._lock:
            self._acts.append(act)
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="fray-callbacks", daemon=True).start()

    def _run(self) -> None:
        while (act := self._next()) is not None:
            try:
                act()
            except Exception:  # noqa: BLE001 - one bad callback must not keep the others
                sys.excepthook(*sys.exc_info())

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            self._busy = bool(self._acts)
            return self._acts.popleft() if self._busy else None


def settle_future(future: "Future[Any]", load: Callable[[], Any]) -> None:
    """Give a future what `load` returns or raises."""
    try:
        value = load()
    except TaskCancelledError:
        future.cancel()
        future.set_running_or_notify_cancel()
    except BaseException as error:  # noqa: BLE001 - the task's, or that of a value that cannot be unpickled
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(value)
