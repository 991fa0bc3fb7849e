"""The engine: what a context knows of its calls. It starts no thread and does no I/O; a runner runs them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from fray._contracts.task_runner import ActorRunner, PackedCall, StoredError, TaskRunner
from fray._engine.actors import Actor
from fray._engine.calls import DEFAULT_TASK, Call, dispatch, inside, shutting_down
from fray._engine.forks import disown_in_children
from fray._engine.refs import EngineRef, error_ref, value_ref
from fray._engine.scope import Scope
from fray._engine.streams import EngineStream, StreamCall
from fray._values.checks import check_count
from fray._values.options import ActorOptions, TaskOptions


class Engine:
    """The bookkeeping of one context.

    Args:
        runner: What runs the calls; the engine closes it when everything is done.
        stream_buffer: Items that a generator task may be ahead of its consumer; 0: it makes an item only
            when one is requested.
    """

    def __init__(self, runner: TaskRunner, *, stream_buffer: int = 16) -> None:
        check_count("stream_buffer", stream_buffer, 0)
        self.runner = runner
        self.scope = Scope(self._drained)
        self.stream_buffer = stream_buffer
        self.actors: WeakSet[Actor] = WeakSet()
        self._actor_runners: WeakSet[Any] = WeakSet()
        self._streams: WeakSet[StreamCall] = WeakSet()
        disown_in_children(self)

    # Tasks.

    def submit(
        self,
        packed: PackedCall,
        name: str | Callable[..., Any],
        options: TaskOptions = DEFAULT_TASK,
        *,
        streaming: bool = False,
        caller: Hashable = None,
    ) -> Any:
        """Start a task and return its reference, or its stream.

        Args:
            name: The function, or its name, for messages.
            caller: Who submits it, where that is not this thread: what runs inside the context may add to
                it while it closes.

        Raises:
            ContextClosedError: The context was shut down.
            Exception: The runner cannot run it.
        """
        refs: Any = packed.refs
        scope = self.scope
        if not streaming:
            call = Call(packed.payload, refs, name, options, self.runner, scope)
            ref = call.ref
            try:
                scope.open.add(call)
                if scope.closing or scope.owner:
                    scope.enter(call, caller is not None or inside(scope))
                if refs:
                    call.begin()
                else:
                    call.hand_over()
            except BaseException as error:
                call.withdraw(error)
                raise
            return ref
        producer = StreamCall(packed.payload, refs, name, options, self.runner, scope, self.stream_buffer)
        stream: EngineStream[Any] = EngineStream(producer)
        try:
            scope.enter(producer, caller is not None or inside(scope))
            self._streams.add(producer)
            producer.begin()
        except BaseException as error:
            producer.withdraw(error)
            raise
        return stream

    def put(self, value: Any) -> EngineRef[Any]:
        """Return a reference that has a value, or a `StoredValue`."""
        return value_ref(value)

    def promise(self) -> EngineRef[Any]:
        """Return a reference that the caller settles with `settle_value` or `settle_error`."""
        return EngineRef()

    def failed(self, error: BaseException | StoredError, *, streaming: bool) -> Any:
        """Return a reference, or a stream, of something that could not be started."""
        if not streaming:
            return error_ref(error)
        producer = StreamCall(None, (), "task", DEFAULT_TASK, self.runner, Scope(_nothing), 1)
        producer.fail(error)
        return EngineStream(producer)

    def cancel(self, ref: Any) -> bool:
        """Cancel what has not started, and what runs where the runner can; see `JobContext.cancel`."""
        if isinstance(ref, EngineStream):
            return ref.call.cancel()
        if isinstance(ref, EngineRef):
            call: Call | None = ref.call
            return call is not None and call.cancel()
        raise ValueError(f"cancel takes what run() returned, got {ref!r}")

    # Actors.

    def new_actor(
        self,
        name: str,
        methods: Mapping[str, bool],
        options: ActorOptions,
        *,
        asynchronous: bool = False,
        scope: Scope | None = None,
        runner: ActorRunner | None = None,
    ) -> Actor:
        """Return an actor that runs nothing yet: `construct` starts it, `open` where it lives elsewhere.

        Args:
            asynchronous: Whether the class has async methods (`fray.backend.is_async_class`).
            scope: What its calls are counted in; by default the context's. With another the actor does
                not end with the context.
            runner: What runs its calls; by default the context's runner makes it.
        """
        actor = Actor(name, methods, options, scope or self.scope, max(1, self.stream_buffer), asynchronous)
        actor.runner = self.runner.new_actor(actor) if runner is None else runner
        if scope is None:
            self.actors.add(actor)
            self._actor_runners.add(actor.runner)
        return actor

    # The end.

    def open_calls(self) -> Sequence[Any]:
        """Return what is under way."""
        return list(self.scope.open)

    def close(self, *, cancel_pending: bool = False) -> None:
        """Take nothing more from outside; end the actors and the runner when everything is done."""
        self.scope.close(cancel=cancel_pending)
        if cancel_pending:
            for call in self.open_calls():
                dispatch(call.cancel_unstarted(shutting_down(call)))

    def wait_closed(self) -> None:
        """Block until everything is done and whatever ran it is gone; after `close`."""
        self.scope.wait()
        for runner in list(self._actor_runners):
            runner.close(wait=True)
        self.runner.close(wait=True)

    def abort(self) -> None:
        """Cancel everything, and end what runs as far as the runner can."""
        self.close(cancel_pending=True)
        self.runner.abort()
        for actor in list(self.actors):
            dispatch(actor.die("its context was shut down", kill=False))

    def disown(self) -> None:
        """In a forked child: refuse calls, and wait for nothing, where the runner cannot be used."""
        if not self.runner.disown():
            self.scope.disown()

    def _drained(self) -> None:
        """All that was submitted is done: end the streams that nobody reads, the actors, the runner."""
        for producer in list(self._streams):
            producer.abandon()
        for actor in list(self.actors):
            dispatch(actor.die("its context was shut down", kill=False))
        self.runner.close(wait=False)


def _nothing() -> None:
    """A scope of its own that nobody waits for."""
