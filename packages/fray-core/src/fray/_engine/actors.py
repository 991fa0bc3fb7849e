"""Actors of this process: an instance, and a mailbox that runs its calls one at a time."""

import _thread
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fray._engine.pool import Job, current_task
from fray._engine.refs import ERROR, Settlement, reduce_by_identity
from fray._engine.streams import LocalStream, Producer
from fray._engine.tasks import Task, pending_refs
from fray._serialization.functions import is_generator_function
from fray._serialization.values import callable_name
from fray._values.errors import ActorDiedError
from fray.job import ActorEndpoint, ActorOptions, actor_methods


class Mailbox(Protocol):
    """The pool of one actor: first in, first out, at most `size` at a time."""

    inline: bool

    def start(self, job: Job) -> None: ...
    def submit(self, job: Job) -> None: ...
    def submit_first(self, job: Job) -> None: ...
    def resize(self, size: int) -> None: ...
    def drain(self) -> list[Job]: ...
    def close(self, *, wait: bool = False) -> None: ...


class Actor:
    """One actor: waits for its constructor's arguments, is constructed, answers calls, dies once.

    Args:
        make_call: Makes a call of the given kind with everything that the actor's context decides.
    """

    def __init__(
        self, cls: Callable[..., Any], options: ActorOptions, mailbox: Mailbox, make_call: Callable[..., Any]
    ) -> None:
        self.name, self.methods = options.name, actor_methods(cls)
        self.label = f"{callable_name(cls)}({options.name!r})" if options.name else callable_name(cls)
        self.mailbox, self.make_call = mailbox, make_call
        self.instance: Any = None
        self.lock = threading.Lock()
        self.lanes: dict[Any, _Lane] = {}
        self.on_death: Callable[[], None] = lambda: None
        self._concurrency = options.max_concurrency or 1
        self._open: set[ActorTask | ActorProducer] = set()  # calls that a death must answer
        self._death: ActorDiedError | None = None
        self._streaming = {name: is_generator_function(method) for name, method in self.methods.items()}

    @property
    def dead(self) -> bool:
        """Whether calls raise ActorDiedError from now on."""
        return self._death is not None

    def construct(self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Queue the constructor; calls wait in the mailbox, which runs nothing until then."""
        constructor: Construction = self.make_call(Construction, cls, args, kwargs, _Front(self.mailbox))
        constructor.actor = self
        constructor.begin()

    def constructed(self, instance: Any) -> None:
        """Start to answer calls."""
        self.instance = instance
        self.mailbox.resize(self._concurrency)

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Queue one call and return its reference or stream."""
        streaming = self._streaming[method]
        kind = ActorProducer if streaming else ActorTask
        call = self.make_call(kind, self.methods[method], args, kwargs, self.mailbox)
        call.actor, call.method = self, method
        answer = LocalStream(call) if streaming else call.ref
        if self._admit(call):
            call.begin()
        return answer

    def _admit(self, call: Any) -> bool:
        caller = current_task() or threading.get_ident()
        with self.lock:
            death = self._death
            if death is None:
                self._open.add(call)
                lane = self.lanes.get(caller)
                if lane is None and pending_refs(call.args, call.kwargs):
                    lane = self.lanes[caller] = _Lane(self, caller)
                if lane is not None:
                    call.pool = lane
                    lane.enter(call)
        if death is not None:
            call.abort(death)
        return death is None

    def closed(self, call: "ActorTask | ActorProducer") -> None:
        """Forget a call that was answered."""
        self._open.discard(call)

    def die(self, reason: str, cause: BaseException | None = None) -> None:
        """Answer every open call and every later one with ActorDiedError; a second death is none."""
        death = ActorDiedError(self.label, reason)
        death.__cause__ = cause
        with self.lock:
            if self._death is not None:
                return
            self._death = death
            open_calls, self._open = self._open, set()
        self.on_death()
        self.mailbox.drain()
        for call in open_calls:
            call.abort(death)
        self.mailbox.close()
        self.instance = None


class Construction(Task):
    """The call of an actor's constructor."""

    __slots__ = ("actor",)

    actor: Actor

    def run(self) -> None:
        """Construct the instance, or let the actor die of the constructor's exception."""
        super().run()
        self._report()

    def fail(self, error: Any, worklist: list[Settlement]) -> None:
        """Let the actor die because an argument of its constructor failed."""
        super().fail(error, worklist)
        self.actor.die(f"an argument of its constructor failed: {error[0]!r}", error[0])

    def _report(self) -> None:
        if self.ref._state == ERROR:
            error = self.ref._value[0]
            self.actor.die(f"its constructor raised {type(error).__name__}: {error}", error)
        else:
            self.actor.constructed(self.ref._value)

    def encode(self, value: Any) -> Any:
        """Keep the instance as it is: it never leaves the actor."""
        return value


class ActorTask(Task):
    """A call of a method with one result."""

    __slots__ = ("actor", "arrived", "method")

    actor: Actor
    method: str

    def run(self) -> None:
        """Call the method on the instance."""
        self.fn = getattr(self.actor.instance, self.method, self.fn)
        super().run()
        self.actor.closed(self)

    def fail(self, error: Any, worklist: list[Settlement]) -> None:
        """Settle with the argument's failure and let the caller's later calls pass."""
        super().fail(error, worklist)
        self.pool.submit(self)

    def cancel(self, reason: BaseException) -> bool:
        """End it unrun and let the caller's later calls pass."""
        cancelled = super().cancel(reason)
        if isinstance(self.pool, _Lane):
            self.pool.submit(self)
        return cancelled


class ActorProducer(Producer):
    """A call of a generator method; between its items the actor answers other calls."""

    __slots__ = ("actor", "arrived", "method")

    actor: Actor
    method: str

    def run(self) -> None:
        """Produce on the instance."""
        self.fn = getattr(self.actor.instance, self.method, self.fn)
        super().run()
        if self._finished:
            self.actor.closed(self)

    def fail(self, error: Any, worklist: list[Settlement]) -> None:
        """End with the argument's failure and let the caller's later calls pass."""
        super().fail(error, worklist)
        self.pool.submit(self)


class Endpoint(ActorEndpoint):
    """What handles of one actor share; when the last is gone, an actor without a name ends."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    @property
    def methods(self) -> Mapping[str, Any]:
        return self.actor.methods

    @property
    def label(self) -> str:
        return self.actor.label

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.actor.call(method, args, kwargs)

    def close_when_dropped(self) -> None:
        """Let the actor end, after the calls that it has, when nobody can call it any more."""
        weakref.finalize(self, _close_soon, self.actor.mailbox)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)


def _close_soon(mailbox: Mailbox) -> None:
    # The garbage collector may call this in a thread that holds the mailbox's lock: another must close it.
    with contextlib.suppress(RuntimeError):  # the interpreter is ending, and the thread with it
        _thread.start_new_thread(mailbox.close, ())


class _Front:
    """Puts the constructor before every call, and opens the mailbox for it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox, self.inline = mailbox, mailbox.inline

    def start(self, job: Job) -> None:
        self._mailbox.submit_first(job)
        self._mailbox.resize(1)

    submit = start


class _Lane:
    """Keeps the calls of one caller in order while the first of them waits for its arguments.

    It is the pool of the calls in it, and passes them on to the mailbox.
    """

    def __init__(self, actor: Actor, caller: Any) -> None:
        self._actor, self._caller = actor, caller
        self._calls: deque[Any] = deque()
        self._passing = False
        self.inline = actor.mailbox.inline

    def enter(self, call: Any) -> None:
        """Under the actor's lock: take a place in the line."""
        call.arrived = False
        self._calls.append(call)

    def start(self, job: Any) -> None:
        """Let a call go on when every call before it has."""
        job.arrived = True
        with self._actor.lock:
            if (
                self._passing
            ):  # by whoever is below, so that two threads do not pass two calls in the wrong order
                return
            self._passing = True
        while (head := self._next()) is not None:
            self._actor.mailbox.submit(head)

    submit = start

    def _next(self) -> Any:
        with self._actor.lock:
            if self._calls and self._calls[0].arrived:
                return self._calls.popleft()
            self._passing = False
            if not self._calls:
                self._actor.lanes.pop(self._caller, None)
            return None
