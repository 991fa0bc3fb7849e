"""Running a call on the calling thread: what every runner in this process does."""

import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

from fray._contracts.current_context import current_context_var
from fray._contracts.refs import ObjectRef
from fray._contracts.task_runner import PackedCall, Ready, StoredError
from fray._engine.calls import _thread, dispatch, shutting_down
from fray._engine.refs import EngineRef, LocalError, PickledValue, outcome, ref_of_future
from fray._serialization.values import dumps_call, pack_exception, unpack_exception
from fray._values.errors import TaskCancelledError
from fray._values.threads import NoThreadError, start_thread

_END = object()
_BEGINS_WITHIN = 1.0  # seconds in which a thread that was started runs
_packed_call = tuple.__new__  # a third of what a NamedTuple's own constructor takes
_PLAIN = frozenset({int, str, float, bool, bytes, list, dict, tuple, set, type(None)})


class CallPacker:
    """Packs calls for this process: function, arguments, and the context variables of their caller.

    Args:
        check_serialization: Pickle functions and arguments as a cluster would.
    """

    def __init__(self, *, check_serialization: bool = False) -> None:
        self.checked = check_serialization
        self._owner: Any = None
        self._plain = Context()

    def belong_to(self, context: Any) -> None:
        """Set what `get_job_context` returns inside the calls."""
        self._owner = context
        self._plain.run(current_context_var.set, context)

    def pack(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PackedCall:
        """Return a call as `CallExecutor.run` takes it; with checks, of a copy of its arguments."""
        refs: Any = ()
        for arg in args:
            if type(arg) not in _PLAIN and isinstance(arg, ObjectRef | Future):
                args, refs = _with_refs(args)
                break
        if kwargs:
            kwargs, more = _with_named_refs(kwargs)
            if more:
                refs = [*refs, *more]
        if self.checked:
            fn, args, kwargs = _copied(fn, args, kwargs)
            refs = [one for one in (*args, *kwargs.values()) if type(one) is EngineRef]
        context = copy_context()
        if not context:  # the usual case, and the cheaper one
            context = self._plain.copy()
        elif context.get(current_context_var) is not self._owner:
            context.run(current_context_var.set, self._owner)
        return _packed_call(PackedCall, ((fn, args, kwargs, context), refs))


class CallExecutor:
    """Runs calls that a `CallPacker` packed, each on the calling thread.

    Args:
        check_serialization: Pickle results as a cluster would.
        inline: Calls run on the thread that submits them, so Ctrl-C in one is the user's.
    """

    def __init__(self, *, check_serialization: bool = False, inline: bool = False) -> None:
        self._checked, self._inline = check_serialization, inline

    def run(self, call: Any, instance: Any = None) -> Ready:
        """Run a call unless it was cancelled, and settle it; of a stream, as much as it may give now.

        What a constructor returned is left in the call's `state`.

        Args:
            instance: The actor, for a method.

        Returns:
            What became ready, for `dispatch`.
        """
        if call.streaming:
            self._produce(call, instance)
            return ()
        if call.scope.cancelling:
            ready: Ready = call.cancel_unstarted(shutting_down(call))
            return ready
        payload, refs = call.payload, call.refs  # before the claim: a `kill` takes both from a claimed call
        try:
            del call._unclaimed  # `claim`, written out
        except AttributeError:
            return ()
        fn, args, kwargs, context = payload
        before, _thread.call = _thread.call, call
        try:
            # The function is called from here and not from a helper: inline nesting costs a frame for each.
            if refs:
                args, kwargs = resolved(args, kwargs)
            if fn is None:
                fn = getattr(instance, call.method)
            value = context.run(fn, *args, **kwargs)
            if type(value) is types.CoroutineType:
                value = run_coroutine(value, context)
            if self._checked or call.kind != "task":
                value = self.kept(call, value)
        except BaseException as error:
            ready = call.fail(self.kept_error(error))
            if self._inline and isinstance(error, KeyboardInterrupt):
                raise  # Ctrl-C is the user's, not the task's: it ends the program here and now
            return ready
        finally:
            _thread.call = before
        return call.succeed(value)  # type: ignore[no-any-return]

    def kept(self, call: Any, value: Any) -> Any:
        """Return a result as its reference keeps it; an instance never leaves its actor."""
        if call.kind == "construct":
            call.state = value
            return None
        return PickledValue(value, f"the result of {call.label}") if self._checked else value

    def _produce(self, call: Any, instance: Any) -> None:
        """Produce until the credits are used up, the generator ends, or the stream is cancelled."""
        generator = call.state
        if generator is None and not call.claim():
            return
        before, _thread.call = _thread.call, call
        try:
            while not call.ended:
                if call.cancelled or call.unwanted:
                    if generator is not None:
                        generator.close()
                    call.fail(TaskCancelledError(f"{call.label} was cancelled"))
                    return
                if generator is None:
                    generator = call.state = _generator_of(call, instance)
                value = generator.next()
                if value is _END:
                    call.succeed()
                    return
                if call.push((self.kept_item(call, value),)):
                    return
        except BaseException as error:  # noqa: BLE001 - it comes out at this item
            call.fail(self.kept_error(error))
        finally:
            _thread.call = before
            if call.ended:
                call.state = None

    def kept_item(self, call: Any, item: Any) -> Any:
        """Return an item of a stream as its reference keeps it."""
        return PickledValue(item, f"an item of {call.label}") if self._checked else item

    def kept_error(self, error: BaseException, file: str = __file__) -> StoredError:
        """Return an exception as a reference keeps it, without the frames of what made the call."""
        stripped = strip_frames(error, file)
        return LocalError(unpack_exception(pack_exception(stripped)) if self._checked else stripped)


def arguments_of(call: Any, instance: Any = None) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    """Return the function of a call, or the method of an instance, and its arguments, references resolved."""
    fn, args, kwargs, _ = call.payload
    if call.refs:
        args, kwargs = resolved(args, kwargs)
    return getattr(instance, call.method) if fn is None else fn, args, kwargs


def _generator_of(call: Any, instance: Any) -> "_Generator":
    context = call.payload[3]
    fn, args, kwargs = arguments_of(call, instance)
    generator = context.run(fn, *args, **kwargs)
    return (_AsyncGenerator if hasattr(generator, "__anext__") else _Generator)(context, generator)


class _Generator:
    """A generator, suspended between two items, with the context variables that it runs in."""

    __slots__ = ("_context", "_generator")

    def __init__(self, context: Context, generator: Any) -> None:
        self._context, self._generator = context, generator

    def next(self) -> Any:
        """Return the next item, or `_END`."""
        return self._context.run(next, self._generator, _END)

    def close(self) -> None:
        """Let its `finally` blocks run."""
        self._context.run(self._generator.close)


class _AsyncGenerator(_Generator):
    """An async generator, in an event loop of its own that runs while an item is made."""

    __slots__ = ("_runner",)

    def __init__(self, context: Context, generator: Any) -> None:
        super().__init__(context, generator)
        import asyncio

        self._runner = asyncio.Runner()

    def next(self) -> Any:
        item = _END
        try:
            item = self._run(anext(self._generator, _END))
        finally:
            if item is _END:  # it has ended, or failed
                self._close_loop()
        return item

    def close(self) -> None:
        try:
            self._run(self._generator.aclose())
        finally:
            self._close_loop()

    def _close_loop(self) -> None:
        """Close the loop: a failure's traceback may keep it in a cycle, which is collected in any order."""
        _beside_a_loop(self._runner.close)

    def _run(self, awaitable: Any) -> Any:
        awaited = _Awaited(awaitable)
        return _beside_a_loop(lambda: self._runner.run(awaited.run(), context=self._context), awaited.stop)

    def __del__(self) -> None:
        self._close_loop()


def run_coroutine(coroutine: Any, context: Context) -> Any:
    """Return what a coroutine returns, run to its end in an event loop of its own."""
    import asyncio  # 10 ms that a program of plain functions does not pay

    awaited = _Awaited(coroutine)
    return _beside_a_loop(lambda: context.run(asyncio.run, awaited.run()), awaited.stop)


class _Awaited:
    """Something that one thread awaits, and another may stop."""

    def __init__(self, awaitable: Any) -> None:
        self._awaitable = awaitable
        self._task: Any = None
        self._stopped = False

    async def run(self) -> Any:
        from asyncio import current_task

        self._task = current_task()
        if self._stopped:
            self._task.cancel()
        return await self._awaitable

    def stop(self) -> None:
        """Cancel it, from another thread, also where it has not begun."""
        self._stopped = True
        if self._task is not None:
            with suppress(RuntimeError):  # its loop has ended meanwhile
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)


def _beside_a_loop(run_loop: Callable[[], Any], stop: Callable[[], None] | None = None) -> Any:
    """Return what a function returns that runs an event loop, in another thread where this one's own runs.

    Args:
        stop: Ends it there when Ctrl-C ends the wait here.
    """
    # Not imported: what is dropped at the very end of the program comes here too, where no import works.
    events = sys.modules.get("asyncio.events")
    if events is None or events._get_running_loop() is None:
        return run_loop()
    outcomes: Future[Any] = Future()
    begun = threading.Event()

    def run() -> None:
        begun.set()
        try:
            outcomes.set_result(run_loop())
        except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
            outcomes.set_exception(error)

    thread = threading.Thread(target=run, name="fray-coroutine", daemon=True)
    try:
        start_thread(thread)
        return outcomes.result()
    except NoThreadError:
        raise
    except BaseException:
        if stop is not None and not outcomes.done():
            stop()
        begun.wait(_BEGINS_WITHIN)  # Ctrl-C may have come before there was a thread, or before it ran
        raise
    finally:
        if begun.is_set():
            thread.join()


def resolved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return arguments with references replaced by values."""
    values = [outcome(arg) if type(arg) is EngineRef else arg for arg in args]
    if kwargs:
        kwargs = {key: outcome(arg) if type(arg) is EngineRef else arg for key, arg in kwargs.items()}
    return values, kwargs


def strip_frames(error: BaseException, file: str = __file__) -> BaseException:
    """Cut the frames of the module that called the task off, so that a traceback starts in the task."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == file:
        traceback = traceback.tb_next
    return error.with_traceback(traceback)


def future_as_ref(arg: Any) -> Any:
    """Return a reference for a future of the standard library; anything else as it is."""
    return ref_of_future(arg, dispatch) if isinstance(arg, Future) else arg


def _with_refs(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    args = tuple(map(future_as_ref, args))
    return args, [arg for arg in args if type(arg) is EngineRef]


def _with_named_refs(kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    kwargs = {key: future_as_ref(arg) for key, arg in kwargs.items()}
    return kwargs, [arg for arg in kwargs.values() if type(arg) is EngineRef]


def _copied(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return a call as another process would get it."""
    import pickle

    of_method = fn is None
    copied, args, kwargs = pickle.loads(dumps_call(_method if of_method else fn, args, kwargs))
    return None if of_method else copied, args, kwargs


def _method(*args: Any, **kwargs: Any) -> None:
    """Stands in for an actor's method where its arguments are pickled without it."""


_method.__qualname__ = "the method"
