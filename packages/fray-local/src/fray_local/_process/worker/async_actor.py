"""An actor with an asynchronous method: one event loop for its life, all its calls on it, concurrently."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
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
        self._loop = self._runner.get_loop()
        self._context = copy_context()  # what the constructor sets in it the calls find
        made: Future[Any] = Future()
        self._runner.run(_construct(construct, made), context=self._context)
        self._instance = made.result()
        self._room = asyncio.Semaphore(worker.concurrency or _CONCURRENCY)
        self._tasks: set[asyncio.Task[None]] = set()
        self._fed = self._dead = False

    def serve(self) -> None:
        """Run calls until stopped, and those that are there to their ends.

        None of the loop's tasks is ours but the calls: a program may cancel all that it finds there.
        """
        with self._runner:
            threading.Thread(target=self._feed, name="fray-feed", daemon=True).start()
            try:
                self._loop.run_forever()
            finally:
                self._dead = not self._fed  # SystemExit, say, of a task that the actor started
            if self._dead:
                raise RuntimeError("the actor has stopped its event loop")
            if self._tasks:
                self._loop.run_until_complete(asyncio.wait(self._tasks))

    def _feed(self) -> None:
        """Hand calls to the loop, from a thread of its own."""
        while True:
            call = self._worker.early.popleft() if self._worker.early else self._worker.calls.get()
            act = self._end if call is None else partial(self._begin, call)
            try:
                self._loop.call_soon_threadsafe(act, context=self._context)
            except RuntimeError:  # the loop has ended, and the process with it
                return
            if call is None:
                return

    def _end(self) -> None:
        self._fed = True
        self._loop.stop()

    def _begin(self, call: IncomingCall) -> None:
        task = self._loop.create_task(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(partial(self._over, call))

    def _over(self, call: IncomingCall, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # by the program, before its first step
            self._finish(call, *_packed(call, asyncio.CancelledError()))
        self._worker.flush()  # references in its arguments and its result have gone since its end was sent

    async def _run(self, call: IncomingCall) -> None:
        try:
            async with self._room:
                self._worker.note_started(call)
                changed = self._listen(call)
                if call.cancelled:
                    raise asyncio.CancelledError  # noqa: TRY301 - ends as one that was cancelled later
                fn, args, kwargs = call.load(self._instance)
                value = fn(*args, **kwargs)  # here: StopIteration cannot leave a coroutine as it is
                if call.credits is not None:
                    await self._yield(call, value, changed)
                    state, blob = END, Blob(b"")
                else:
                    value = await value if inspect.isawaitable(value) else value
                    state, blob = VALUE, self._worker.pack(call, value)
        except BaseException as error:  # noqa: BLE001 - whatever the call raised is its result
            state, blob = _packed(call, error)
        self._finish(call, state, blob)

    def _finish(self, call: IncomingCall, state: int, blob: Blob) -> None:
        """Send the end of a call; where the loop has ended, the end of this process says it."""
        if not self._dead:
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

    async def _yield(self, call: IncomingCall, generator: Any, changed: asyncio.Event) -> None:
        asynchronous = inspect.isasyncgen(generator)
        try:
            while True:
                changed.clear()
                if not self._worker.wants_more(call):
                    if call.cancelled:  # its caller is gone: nobody interrupts it
                        return
                    await changed.wait()
                    continue
                value = await anext(generator, _DONE) if asynchronous else next(generator, _DONE)
                if value is _DONE:
                    return
                self._worker.send_item(call, self._worker.pack(call, value))
        finally:
            await generator.aclose() if asynchronous else generator.close()


async def _construct(construct: Callable[[], Any], made: "Future[Any]") -> None:
    try:
        made.set_result(construct())
    except BaseException as error:  # noqa: BLE001 - raised outside: StopIteration leaves no coroutine as it is
        made.set_exception(error)


def _packed(call: IncomingCall, error: BaseException) -> tuple[int, Blob]:
    if isinstance(error, asyncio.CancelledError):  # by `cancel`, or by the program itself
        error = TaskCancelledError(f"{call.label()} was cancelled")
    return packed_error(error, __file__)
