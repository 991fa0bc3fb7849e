"""Runs the calls of an async actor: one event loop for its life, in a thread of its own."""

import asyncio
import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fray import TaskCancelledError
from fray.backend import (
    CallExecutor,
    NoThreadError,
    Ready,
    arguments_of,
    dispatch,
    set_current_call,
    start_thread,
)

_END_SECONDS = 5.0  # that what an actor left running in its loop has to end


class EventLoopActor:
    """All calls of one async actor, concurrently on its loop; plain methods run on it as well."""

    interrupts = True

    def __init__(self, actor: Any, executor: CallExecutor) -> None:
        self._executor, self._concurrency = executor, actor.concurrency
        self._actor = weakref.ref(actor)  # which holds this
        self._name = f"fray-actor-{actor.name or actor.label}"
        self._instance: Any = None
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unstopped = True
        self._thread: threading.Thread | None = None
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        self._waiting: dict[Any, asyncio.Event] = {}

    @property
    def runs(self) -> bool:
        """Whether its thread was started and has not ended."""
        return self._loop is not None and not self._loop.is_closed()

    def start(self, calls: Sequence[Any]) -> None:
        """Hand calls to the loop; the first one is the constructor's and starts it."""
        if self._loop is None:
            self._slots = asyncio.Semaphore(self._concurrency)
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            try:
                self._thread = start_thread(thread)
            except NoThreadError:
                self._loop.close()  # which makes calls that come later no-ops
                raise
        for call in calls:
            self._tell(self._begin, call)

    def _tell(self, act: Any, *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the calls were answered by the engine
            assert self._loop is not None
            self._loop.call_soon_threadsafe(act, *args)

    def _serve(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            while self._run_loop(loop):
                self.end(kill=True)
        finally:
            self._instance = None
            _finish(loop, _ended(loop))
            _finish(loop, _for_a_while(loop.shutdown_asyncgens()))
            _finish(loop, _for_a_while(_threads_ended(loop)))
            loop.close()

    # On the loop's thread.

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run the loop until it is stopped; True where the program ended it first, and the actor with it."""
        try:
            loop.run_forever()
            if not hasattr(self, "_unstopped"):
                return False
            raise RuntimeError("the actor has stopped its event loop")  # noqa: TRY301 - it dies of that, too
        except BaseException as error:  # noqa: BLE001 - SystemExit, say, of a task that the actor started
            actor = self._actor()
            if actor is not None:
                self._settle(actor.die, "its event loop ended: {cause!r}", error)
            return True

    def _begin(self, call: Any) -> None:
        if call.kind == "construct":
            set_current_call(call)  # what the actor submits, it submits from inside its context
            ready = self._executor.run(call)
            set_current_call(call)
            self._instance = call.state
            dispatch(ready)
            return
        payload = call.payload  # before the claim: a `kill` takes it from a claimed call
        if not call.claim():
            return
        assert self._loop is not None
        task = self._loop.create_task(self._run(call), context=payload[3])
        self._tasks[call] = task
        task.add_done_callback(partial(self._over, call))

    def _over(self, call: Any, task: asyncio.Task[None]) -> None:
        self._tasks.pop(call, None)
        if task.cancelled():  # by the program, before its first step
            self._settle(call.fail, _cancelled(call))

    def _settle(self, settle: Callable[..., Ready], *args: Any) -> None:
        """End calls, and start what became ready by that."""
        dispatch(settle(*args))

    async def _run(self, call: Any) -> None:
        try:
            async with self._slots:
                method, args, kwargs = arguments_of(call, self._instance)
                result = method(*args, **kwargs)  # here: StopIteration cannot leave a coroutine as it is
                if call.streaming:
                    await self._produce(call, result)
                    result = None
                elif inspect.isawaitable(result):
                    result = await result
                result = self._executor.kept(call, result)
        except asyncio.CancelledError:  # by `cancel`, or by the program itself, also before its turn
            self._settle(call.fail, _cancelled(call))
        except BaseException as error:  # noqa: BLE001 - whatever the method raised is its result
            self._settle(call.fail, self._executor.kept_error(error, __file__))
        else:
            self._settle(call.succeed, result)

    async def _produce(self, call: Any, generator: Any) -> None:
        if hasattr(generator, "__anext__"):
            async with contextlib.aclosing(generator) as items:
                async for item in items:
                    await self._push(call, item)
        else:
            with contextlib.closing(generator) as items:
                for item in items:
                    await self._push(call, item)

    async def _push(self, call: Any, item: Any) -> None:
        event = self._waiting[call] = asyncio.Event()
        try:
            # One that is over, because it was cancelled, waits for the cancellation of its task.
            if call.push((self._executor.kept_item(call, item),)) or call.over:
                await event.wait()
        finally:
            self._waiting.pop(call, None)

    def _resume(self, call: Any) -> None:
        event = self._waiting.get(call)
        if event is not None:
            event.set()

    def _cancel(self, call: Any) -> None:
        task = self._tasks.get(call)
        if task is not None:
            task.cancel()

    # From any thread.

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Resume a stream that waited."""
        if parked:
            self._tell(self._resume, call)

    def interrupt(self, call: Any) -> None:
        """Cancel the call's task in the loop."""
        self._tell(self._cancel, call)

    def end(self, *, kill: bool) -> None:
        """Stop the loop; what still runs in it is cancelled: all calls were answered, or are unwanted."""
        del kill
        if self._loop is None:
            return
        try:
            del self._unstopped  # a second stop would interrupt what ends the loop
        except AttributeError:
            return
        self._tell(self._loop.stop)

    def close(self, *, wait: bool) -> None:
        """Stop the loop and wait for its thread."""
        self.end(kill=True)
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()


def _cancelled(call: Any) -> TaskCancelledError:
    return TaskCancelledError(f"{call.label} was cancelled")


def _finish(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
    """Run a loop until something in it is done, though what else runs there ends the loop meanwhile."""
    task = loop.create_task(work)
    while not task.done():
        with contextlib.suppress(BaseException):  # SystemExit, say, of a task that was cancelled
            loop.run_until_complete(task)


async def _for_a_while(work: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.wait([task], timeout=_END_SECONDS)
    task.cancel()


async def _threads_ended(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for what `asyncio.to_thread` runs. The loop's own method for that cannot be cancelled.

    What is not waited for runs on, and the interpreter waits for it at the program's end.
    """
    executor: Any = getattr(loop, "_default_executor", None)
    ended = asyncio.Event()

    def join() -> None:
        executor.shutdown()
        with contextlib.suppress(RuntimeError):  # the loop is closed: it took too long
            loop.call_soon_threadsafe(ended.set)

    if executor is not None:
        start_thread(threading.Thread(target=join, name="fray-actor-end", daemon=True))
        await ended.wait()


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left in a loop, and wait for a while until it has ended."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_END_SECONDS)
