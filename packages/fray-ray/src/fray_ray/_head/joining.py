"""How a job becomes one of Ray's when it has room: what that gives its replicas."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fray.backend import CannotRun
from fray_ray._head.job_tasks import JobTasks

Join = Callable[[], Awaitable[Mapping[str, str] | CannotRun]]
"""Has Ray start the job's own process; returns the variables that all replicas have by it."""


class Joining:
    """Begun once, when the job has room; its actors come up meanwhile.

    Args:
        join: None for a job that has no process of its own.
        tell: Called with the event that ends a job which cannot run.
    """

    def __init__(self, join: Join | None, tasks: JobTasks, tell: Callable[[Any], None]) -> None:
        self._join, self._tasks, self._tell = join, tasks, tell
        self._begun = False
        self._done = asyncio.Event()
        self._variables: Mapping[str, str] = {}

    def begin(self) -> None:
        """Begin, where that was not done."""
        if not self._begun:
            self._begun = True
            self._tasks.start(self._run())

    async def variables(self) -> Mapping[str, str]:
        """Return the variables of all replicas, when the job is one of Ray's.

        Never returns if the job cannot join; the caller is cancelled then.
        """
        await self._done.wait()
        return self._variables

    async def _run(self) -> None:
        joined: Mapping[str, str] | CannotRun = {} if self._join is None else await self._join()
        if isinstance(joined, CannotRun):
            self._tell(joined)
        else:
            self._variables = joined
            self._done.set()
