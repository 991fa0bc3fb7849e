"""A context over a `TaskRunner`: the engine keeps its books, the runner runs its calls."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, TypeVar

from fray._contexts.base import ContextBase
from fray._contexts.exits import end_engine
from fray._contracts.actor_handle import ActorHandle, actor_methods
from fray._contracts.task_runner import PackedCall, StoredValue, TaskRunner
from fray._engine.actor_endpoint import EngineEndpoint
from fray._engine.actors import Actor
from fray._engine.calls import dispatch, inside
from fray._engine.engine import Engine
from fray._engine.futures import EngineFuture
from fray._engine.identity import reduce_by_identity
from fray._engine.refs import ERROR, VALUE, EngineRef, outcome
from fray._engine.waiting import (
    await_one,
    await_values,
    block_until_ready,
    blocking,
    ready_positions,
    seconds,
    sources_of,
    timed_out,
)
from fray._serialization.functions import GENERATOR, is_async_class, is_generator_function
from fray._serialization.values import callable_name
from fray._values.errors import ActorAlreadyExistsError, ActorNotFoundError
from fray._values.options import ActorOptions, TaskOptions

T = TypeVar("T")
R = TypeVar("R")


class TaskRunnerContext(ContextBase):
    """Every promise of a context, over a runner; no hook needs to be overridden.

    Attributes:
        engine: The books: references, dependencies, streams, the order of an actor's calls.

    Args:
        runner: Runs the calls; the context closes it at its own end.
        stream_buffer: Items that a generator task may be ahead of its consumer; 0: none is made unasked.
        max_retries: Of every task that does not say otherwise.
    """

    def __init__(
        self, runner: TaskRunner, *, stream_buffer: int = 16, max_retries: int | None = None
    ) -> None:
        self.engine = Engine(runner, stream_buffer=stream_buffer)
        self._runner = runner
        runner.belong_to(self)
        self._named: dict[str, EngineEndpoint] = {}
        if max_retries is not None:
            self._task_options = TaskOptions(max_retries=max_retries)

    # Tasks.

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not callable(fn):
            raise ValueError(f"a task needs a function, got {fn!r}")
        packed = self._runner.pack(fn, args, kwargs)
        name = options.name or fn
        if type(fn) is FunctionType and not fn.__code__.co_flags & GENERATOR:  # said here, as most are
            return self.engine.submit(packed, name, options)
        return self.engine.submit(packed, name, options, streaming=is_generator_function(fn))

    def put(self, obj: T, /) -> EngineRef[T]:
        """Store a value; see `JobContext.put`. In memory that is a reference to the very object."""
        return self.engine.put(obj)

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Return the value of a reference, or of each in a list; see `JobContext.get`."""
        if isinstance(ref, EngineRef):
            if not ref.state:
                self.engine.scope.check_owner()
                limit = seconds(timeout)
                if not await_one(ref, limit):
                    raise timed_out(timeout, [ref])
            return outcome(ref)
        if isinstance(ref, list):
            refs = [one for one in ref if isinstance(one, EngineRef)]
            for one in refs:
                if one.state != VALUE:
                    self._await_all(refs, timeout)
                    break
            # The value of most is read here: a call of `outcome` for each is as much as all the rest.
            return [
                (outcome(one) if one.state != VALUE or isinstance(one.content, StoredValue) else one.content)
                if type(one) is EngineRef
                else one
                for one in ref
            ]
        return ref

    def _await_all(self, refs: list[EngineRef[Any]], timeout: float | None) -> None:
        """Block until all have values; raise the first failure as soon as there is one."""
        self.engine.scope.check_owner()
        if not any(one.state == ERROR for one in refs):
            await_values(refs, timeout)
        for one in refs:
            if one.state == ERROR:
                outcome(one)

    def wait(
        self, refs: Sequence[R], /, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[R], list[R]]:
        """Return the first `num_returns` ready ones and the others, in input order; see `JobContext.wait`."""
        if not hasattr(num_returns, "__index__") or num_returns < 1:
            raise ValueError(f"num_returns must be an int of 1 or more, got {num_returns!r}")
        needed = min(num_returns, len(refs))
        ready = ready_positions(refs, needed)
        if len(ready) < needed and timeout != 0:
            self.engine.scope.check_owner()
            ready = block_until_ready(refs, needed, timeout)
        elif len(ready) < needed:
            sources_of(refs)  # a look asks, too: some streams make no item unasked
            ready = ready_positions(refs, needed)
        if len(ready) == 1:  # the common call, in a loop over many: one copy instead of a test for each
            pending = list(refs)
            return [pending.pop(ready[0])], pending
        chosen = set(ready)
        return [refs[i] for i in ready], [ref for i, ref in enumerate(refs) if i not in chosen]

    def cancel(self, ref: Any, /) -> bool:
        """Cancel what has not started, and what has where the runner can; see `JobContext.cancel`."""
        return self.engine.cancel(ref)

    def _future(self, ref: Any) -> "Future[Any]":
        if isinstance(ref, EngineRef) and not ref.state:
            self.engine.scope.check_owner()
        return EngineFuture(ref, self._runner.call_back)

    def _lending(self) -> AbstractContextManager[None]:
        return blocking(0)

    # Actors.

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        packed = self._runner.pack(cls, args, kwargs)
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        actor = self.engine.new_actor(callable_name(cls), methods, options, asynchronous=is_async_class(cls))
        endpoint = self._endpoint(actor)
        name, named = options.name, self._named
        if name is None:
            endpoint.close_when_dropped()
        else:  # before it has the name: an interrupt may come next
            endpoint.actor.on_death.append(lambda: _forget(named, name, endpoint))
        try:
            existing = endpoint if name is None else named.setdefault(name, endpoint)
            if existing is endpoint:
                endpoint.actor.construct(packed)
        except BaseException as error:  # another caller may have found it by its name meanwhile
            dispatch(endpoint.actor.die("it could not be made: {cause}", error))
            raise
        if existing is not endpoint:
            if options.get_if_exists:
                return ActorHandle(existing)
            raise ActorAlreadyExistsError(str(name))
        return ActorHandle(endpoint)

    def _endpoint(self, actor: Actor) -> EngineEndpoint:
        """Return what the handles of an actor share."""
        return EngineEndpoint(actor, self._pack_arguments)

    def _pack_arguments(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PackedCall:
        return self._runner.pack(fn, args, kwargs)

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name; see `JobContext.get_actor`."""
        endpoint = self._named.get(name)
        if endpoint is None:
            raise ActorNotFoundError(name, sorted(self._named))
        return ActorHandle(endpoint)

    def kill(self, handle: Any, /) -> None:
        """End an actor; its callers get the error at once, whatever it still does."""
        if not isinstance(handle, ActorHandle) or not isinstance(handle._endpoint, EngineEndpoint):
            raise ValueError(f"kill takes a handle that create_actor or get_actor returned, got {handle!r}")
        dispatch(handle._endpoint.actor.die("it was killed"))

    # The end.

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """End the context; see `JobContext.shutdown`."""
        engine = self.engine
        if engine.scope.foreign:
            return
        self._closed = True
        engine.close(cancel_pending=cancel_pending)
        if not wait or inside(engine.scope):  # a task cannot wait for its own end
            return
        with blocking():
            engine.wait_closed()

    def abort(self) -> None:
        """End the context at once: cancel what has not started, wait for nothing."""
        if not self.engine.scope.foreign:
            self._closed = True
            self.engine.abort()

    def at_program_end(self, failed: bool) -> None:
        """Wait for what was submitted, or for nothing; see `end_at_exit`."""
        end_engine(self, failed)

    def end_of_program(self) -> None:
        """Do nothing: the program has ended, and what it submitted is done; see `end_at_exit`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)


def _forget(named: dict[str, EngineEndpoint], name: str, endpoint: EngineEndpoint) -> None:
    if named.get(name) is endpoint:
        del named[name]
