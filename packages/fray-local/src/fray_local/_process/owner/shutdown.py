"""Contexts that nobody has shut down end with the program, at once where Ctrl-C ended that."""

import atexit
import contextlib
import sys
from typing import TYPE_CHECKING
from weakref import WeakSet

from fray import TaskCancelledError

if TYPE_CHECKING:
    from fray_local._process.context import ProcessContext

open_contexts: "WeakSet[ProcessContext]" = WeakSet()


@atexit.register
def _shutdown_open_contexts() -> None:
    interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    for context in list(open_contexts):
        with contextlib.suppress(TaskCancelledError):
            if interrupted:
                context.abort()
            context.shutdown()
