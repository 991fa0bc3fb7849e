"""The asyncio tasks of one job: those that fail are reported, and none is left when the job has ended."""

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any


class JobTasks:
    """What runs beside the loop of a job.

    Args:
        on_error: Called with what a task has raised.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all that run."""
        for task in list(self._tasks):
            task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            traceback.print_exception(error)
            self._on_error(error)
