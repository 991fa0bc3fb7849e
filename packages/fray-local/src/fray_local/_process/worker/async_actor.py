"""An actor with an asynchronous method: one event loop for its life, all its calls on it, concurrently."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from fray import TaskCancelledError
from fray_local._process.protocol.values import END, VALUE, Blob
from fray_local._process.worker.incoming_calls import IncomingCall, packed_error
from fray_local._process.worker.interfaces import CallRunner

_CONCURRENCY = 1000  # calls at a time, where nothing was said
_DONE = object()


class AsyncActor:
    """Runs the calls of one actor; the constructor runs in the loop as well, so that it may start tasks."""

    def __init__(self, worker: CallRunner, construct: Callable[[], Any]) -> None:
        self._worker = worker
        self._runner = asyncio.Runner()
        self._instance = self._runner.run(_call(construct))
        self._room = asyncio.Semaphore(worker.concurrency or _CONCURRENCY)
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self) -> None:
        """Run calls until stopped, and those that are there to their ends."""
        with self._runner:
            self._runner.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        incoming: asyncio.Queue[IncomingCall | None] = asyncio.Queue()

        def feed() -> None:
            while True:
                call = self._worker.early.popleft() if self._worker.early else self._worker.calls.get()
                loop.call_soon_threadsafe(incoming.put_nowait, call)
                if call is None:
                    return

        threading.Thread(target=feed, name="fray-feed", daemon=True).start()
        while (call := await incoming.get()) is not None:
            task = loop.create_task(self._run(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, call: IncomingCall) -> None:
        async with self._room:
            changed = self._listen(call)
            try:
                if call.cancelled:
                    raise asyncio.CancelledError  # noqa: TRY301 - ends as one that was cancelled later
                if call.credits is None:
                    state, blob = VALUE, self._worker.pack(call, await self._value(call))
                else:
                    await self._yield(call, changed)
                    state, blob = END, Blob(b"")
            except BaseException as error:  # noqa: BLE001 - whatever the call raised is its result
                state, blob = _packed(call, error)
            self._worker.finish_call(call, state, blob, 0.0)

    def _listen(self, call: IncomingCall) -> asyncio.Event:
        """Return what is set when the call got credits; a cancelled one is interrupted."""
        loop, task, changed = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()

        def act() -> None:
            changed.set()
            if call.cancelled and task is not None:
                task.cancel()

        def tell() -> None:
            loop.call_soon_threadsafe(act)

        call.on_change = tell
        return changed

    async def _value(self, call: IncomingCall) -> Any:
        fn, args, kwargs = call.load(self._instance)
        value = fn(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    async def _yield(self, call: IncomingCall, changed: asyncio.Event) -> None:
        fn, args, kwargs = call.load(self._instance)
        generator = fn(*args, **kwargs)
        asynchronous = inspect.isasyncgen(generator)
        try:
            while True:
                changed.clear()
                if not self._worker.wants_more(call):
                    await changed.wait()
                    continue
                value = await anext(generator, _DONE) if asynchronous else next(generator, _DONE)
                if value is _DONE:
                    return
                self._worker.send_item(call, self._worker.pack(call, value))
        finally:
            await generator.aclose() if asynchronous else generator.close()


async def _call(construct: Callable[[], Any]) -> Any:
    return construct()


def _packed(call: IncomingCall, error: BaseException) -> tuple[int, Blob]:
    if call.cancelled and isinstance(error, asyncio.CancelledError):
        error = TaskCancelledError(f"{call.label()} was cancelled")
    return packed_error(error, __file__)
