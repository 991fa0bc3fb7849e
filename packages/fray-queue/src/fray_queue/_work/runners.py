"""Where a pool's function is called: in threads, in the event loop, or in processes behind threads."""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from fray.backend import start_thread
from fray_queue._work.calls import Call, Function, ItemResult, waiting_in_thread

Finished = Callable[[Call], None]


class Runner(Protocol):
    """Runs calls. The pool calls it in its event loop, and there it calls back."""

    ahead: bool
    """Whether calls may be submitted before a slot is free."""

    def start(self, slots: int, finished: Finished) -> None:
        """Begin; `finished` is called for each call that ends."""

    def submit(self, call: Call) -> None:
        """Run a call as soon as a slot is free."""

    def withdraw(self) -> list[Call]:
        """Take back the calls that have not begun."""

    def interrupt(self, call: Call) -> bool:
        """Make a call end, where that is possible; whether it is."""

    def close(self) -> None:
        """Begin nothing any more, and leave behind what does not end."""


class Invoker(Protocol):
    """Calls the function on items, for one thread."""

    def __call__(self, call: Call) -> list[ItemResult]:
        """Call the function, and `begin` of the call just before: what was prepared counts for no item."""
        ...

    def kill(self, call: Call) -> bool:
        """Make a call end, and no other; whether that is possible."""


class InThread:
    """Calls the function in the thread itself, which nothing can interrupt."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "InThread":
        self._wait_for = self._stack.enter_context(waiting_in_thread())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, call: Call) -> list[ItemResult]:
        call.begin()
        return self._function.call(call.items, self._wait_for)

    def kill(self, call: Call) -> bool:
        return False


class ThreadRunner:
    """Runs calls in threads that share one line of calls.

    The threads are daemons: a function that never returns must not keep the process.

    Args:
        invoker: Makes what a thread calls the function with.
    """

    ahead = True

    def __init__(self, invoker: Callable[[], AbstractContextManager[Invoker]]) -> None:
        self._invoker = invoker
        self._line: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._ended: deque[Call] = deque()
        self._told = False  # whether the event loop is about to look into `_ended`
        self._at_work: dict[Call, Invoker] = {}
        self._threads: list[threading.Thread] = []
        self._halted = False

    def start(self, slots: int, finished: Finished) -> None:
        """Start a thread for each slot."""
        self._loop, self._finished = asyncio.get_running_loop(), finished
        self._threads = [
            threading.Thread(target=self._run, name=f"fray-work-{index}", daemon=True)
            for index in range(slots)
        ]
        try:
            for thread in self._threads:
                start_thread(thread)
        except BaseException:  # those that have been started wait for calls
            self.close()
            raise

    def submit(self, call: Call) -> None:
        """Put a call in line."""
        self._line.put(call)

    def withdraw(self) -> list[Call]:
        """Take back what is still in line."""
        found: list[Call] = []
        with contextlib.suppress(queue.Empty):
            while True:
                if (call := self._line.get_nowait()) is not None:
                    found.append(call)
        return found

    def interrupt(self, call: Call) -> bool:
        """Kill the process of a call, where it has one."""
        invoker = self._at_work.get(call)
        return invoker is not None and invoker.kill(call)

    def close(self) -> None:
        """Let threads end after what they do."""
        for _ in self._threads:
            self._line.put(None)

    def _run(self) -> None:
        with self._invoker() as invoker:
            while (call := self._line.get()) is not None:
                if self._halted:  # what is in line goes back to the queue
                    self._line.put(call)
                    break
                self._at_work[call] = invoker
                try:
                    call.outcomes = invoker(call)
                except BaseException as error:  # noqa: BLE001 - raised by `work`, in its caller's thread
                    call.fatal = error
                    self._halted = True
                call.ended = time.monotonic()
                del self._at_work[call]
                self._tell(call)

    def _tell(self, call: Call) -> None:
        self._ended.append(call)
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the pool is gone; this call was given up
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._told = False  # before the look: what is added during it is seen by it or by the next
        while self._ended:
            self._finished(self._ended.popleft())


class CoroutineRunner:
    """Runs calls as tasks of the event loop."""

    ahead = False

    def __init__(self, function: Function) -> None:
        self._function = function
        self._tasks: dict[Call, asyncio.Task[None]] = {}

    def start(self, slots: int, finished: Finished) -> None:
        """Begin."""
        self._loop, self._finished = asyncio.get_running_loop(), finished

    def submit(self, call: Call) -> None:
        """Begin a call; one that ends in here, as eager tasks may, is reported after it has returned."""
        task = self._loop.create_task(self._run(call))
        if task.done():
            self._loop.call_soon(self._finished, call)
        else:
            self._tasks[call] = task

    def withdraw(self) -> list[Call]:
        """Take back nothing: every call has begun."""
        return []

    def interrupt(self, call: Call) -> bool:
        """Cancel a call."""
        task = self._tasks.get(call)
        return task is not None and task.cancel()

    def close(self) -> None:
        """Cancel what is left."""
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, call: Call) -> None:
        call.started = time.monotonic()
        try:
            call.outcomes = await self._function.acall(call.items)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            call.cancelled = task is not None and task.cancelling() > 0  # else the function itself raised it
            call.outcomes = [ItemResult(None, RuntimeError("the function was cancelled"))] * len(call.entries)
        except BaseException as error:  # noqa: BLE001 - raised by `awork`
            call.fatal = error
        finally:
            call.ended = time.monotonic()
            if self._tasks.pop(call, None) is not None:
                self._finished(call)
