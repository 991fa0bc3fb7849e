"""An asynchronous server in a thread of its own, for programs that are not asynchronous."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from fray._values.threads import NoThreadError, start_thread

Serve = Callable[[Callable[[int], None], asyncio.Event], Coroutine[Any, Any, None]]
"""Listens, says at which port, serves until the event is set, and closes what it has opened."""


class ServerThread:
    """Runs a server from `start` to `stop`; it can be started again then.

    Args:
        name: Of the thread.
        loop_factory: Makes its event loop; by default that of asyncio.
    """

    def __init__(
        self, serve: Serve, name: str, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    ) -> None:
        self._serve, self._name, self._loop_factory = serve, name, loop_factory
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._begun = threading.Event()  # its loop runs, or never will

    @property
    def started(self) -> bool:
        """Whether `start` was called, and `stop` not yet."""
        return self._thread is not None

    def start(self) -> int:
        """Return the port, when the server listens; what keeps it from that is raised here."""
        ready: Future[int] = Future()
        self._begun.clear()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=self._name)
        try:
            start_thread(self._thread)
            return ready.result()
        except NoThreadError:
            self._thread = None
            raise
        except BaseException:  # Ctrl-C, too, which may come when the thread has been started
            self.stop()
            raise

    def stop(self) -> bool:
        """End the server and return when its thread has ended; False where none was started."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._begun.wait()
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join()
        return True

    def _run(self, ready: "Future[int]") -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._serve_until_stopped(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._begun.set()

    async def _serve_until_stopped(self, ready: "Future[int]") -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await self._serve(ready.set_result, self._stopping)
