"""`RayContext`: tasks and actors on a Ray cluster."""

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import ray

from fray import ContextClosedError
from fray.backend import (
    ContextCapabilities,
    MapPace,
    check_count,
    end_at_exit,
    is_generator_function,
    seconds,
)
from fray.job import ActorHandle, ActorOptions, ContextBase, ObjectRef, ObjectStream, TaskOptions
from fray_ray._connection import Connection, cluster_resources, family_namespace
from fray_ray._context import lending
from fray_ray._context.actors import Actors, RayEndpoint
from fray_ray._context.calls import Calls, explain_unpicklable, put
from fray_ray._context.cancelling import cancel, close_when_dropped, interrupt
from fray_ray._context.futures import RayFuture, RefWaits
from fray_ray._context.payloads import Payloads
from fray_ray._context.pending import Pending
from fray_ray._context.program_end import finish, interrupt_all, keep_when_dropped
from fray_ray._context.promises import PendingPromises
from fray_ray._context.stream_refs import hold
from fray_ray._context.waiting import fetch, wait_in_order
from fray_ray._options import Sender, check_context_options
from fray_ray._placement import check_group, in_current_group

R = TypeVar("R")
_CLOSED = "this context was shut down; make another with create_context('ray')"
ObjectRef.register(ray.ObjectRef)
ObjectStream.register(ray.ObjectRefGenerator)


class RayContext(ContextBase):
    """Runs tasks and actors on a Ray cluster; references are Ray's own. The first use joins the cluster.

    Args:
        address: The cluster's head as `host:port`, or `auto`; by default the cluster
            that this process is in, else that of `RAY_ADDRESS`, else the one running on this machine.
        namespace: Where names of actors are looked up; by default that of the job's family, or, outside
            of jobs, that of this process's connection to Ray.
        local: Start a private cluster on this machine, which ends with the context.
        max_workers: A hint, as on every context: Ray runs as many tasks as the cluster has room for.
        placement_group: `current` keeps tasks and actors in the placement group that this replica, task or
            actor is in.
        options: Options of `@ray.remote` that hold for every task, e.g. `num_cpus=2`.
    """

    capabilities = ContextCapabilities(
        serializes=True,
        max_workers=False,
        isolation=True,
        streams=True,
        nested_tasks=True,
        nested_threads=True,
        actors=True,
        named_actors=True,
        shared_actors=True,
        detached_actors=True,
        concurrent_actors=True,
        async_actors=True,
        interrupting_cancel=True,
        enforced_resources=True,
        at_most_once=True,
        retries=True,
        max_restarts=True,
        reentrant=True,
        program_end=True,
        runtime_env=True,
    )

    _in_current_group = False  # whether tasks are to be in the group that is current at the first use

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        local: bool = False,
        max_workers: int | None = None,
        placement_group: str | None = None,
        **options: Any,
    ) -> None:
        options = check_context_options(options)
        check_group(placement_group)
        if placement_group is not None and "scheduling_strategy" in options:
            raise ValueError("placement_group and scheduling_strategy both say where tasks run: give one")
        self._in_current_group = placement_group is not None
        if max_workers is not None:
            check_count("max_workers", max_workers, 1)
        self._connection: Connection | None = Connection(address, namespace, local)
        self._set_up(uuid.uuid4().hex, namespace, options)
        self._work = keep_when_dropped(self, self._pending, self._connection)
        end_at_exit(self)  # before Ray disconnects, which was registered when it was imported

    def _set_up(self, identity: str, namespace: str | None, options: dict[str, Any]) -> None:
        self._identity, self._namespace, self._options = identity, namespace, options
        self._shut_down = self._ended = False
        self._pending = Pending()
        self._waits = RefWaits(self._pending)
        self._calls, self._payloads = Calls(options), Payloads(self)
        self._promises = PendingPromises()
        self._actors = Actors(self, options)
        _by_identity[identity] = self

    def __repr__(self) -> str:
        joined = None if self._connection is None else self._connection.joined
        where = "" if joined is None else f" at {joined}"
        return f"<RayContext{where}" + (f" in namespace {self._namespace!r}>" if self._namespace else ">")

    @property
    def namespace(self) -> str:
        """Where names of actors are looked up."""
        self._connect()
        return self.joined_namespace()

    def joined_namespace(self) -> str:
        """Return the namespace of a context that has joined its cluster, also where it was shut down."""
        if self._namespace is None:
            self._namespace = family_namespace()
        return self._namespace

    @property
    def _closed(self) -> bool:  # type: ignore[override]
        """Whether another is made where this one was the current one."""
        return self._shut_down or (self._connection is not None and self._connection.left)

    def _connect(self) -> None:
        self._check_open()
        connection = self._connection
        if connection is None or (connection.opened and not self._in_current_group):
            return
        connection.open()
        if self._in_current_group:
            self._options["scheduling_strategy"] = in_current_group()
            self._in_current_group = False

    def _check_open(self) -> None:
        if self._shut_down:
            raise ContextClosedError(_CLOSED)
        self._check_ray()

    def _check_ray(self) -> None:
        if self._connection is not None:
            self._connection.check()

    def put(self, obj: Any, /) -> Any:
        """Store a value in the cluster's object store; see `JobContext.put`."""
        self._connect()
        ref = put(obj, "the object given to put()")
        hold(ref)
        return ref

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Return the value of a reference, or of each in a list; see `JobContext.get`."""
        self._check_ray()
        if isinstance(ref, ray.ObjectRef):
            value = fetch(ref, seconds(timeout))
            self._pending.done(ref)
            return value
        if not isinstance(ref, list):
            return ref
        refs = [one for one in ref if isinstance(one, ray.ObjectRef)]
        values = iter(fetch(refs, seconds(timeout)))
        for one in refs:
            self._pending.done(one)
        return [next(values) if isinstance(one, ray.ObjectRef) else one for one in ref]

    def wait(
        self, refs: Sequence[R], /, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[R], list[R]]:
        """Return the first `num_returns` ready ones and the others, in input order; see `JobContext.wait`."""
        refs = list(refs)
        if num_returns < 1:
            raise ValueError(f"num_returns must be 1 or more, got {num_returns!r}")
        if not refs:
            return [], []
        self._check_ray()
        with lending.awaiting(refs):
            ready, pending = wait_in_order(refs, min(num_returns, len(refs)), seconds(timeout))
        for ref in ready:
            self._pending.done(ref)
        return ready, pending

    def cancel(self, ref: Any, /) -> bool:
        """Cancel a task; one that runs is interrupted, by force where it does not listen.

        A method that an actor runs is left alone.
        """
        if not isinstance(ref, ray.ObjectRef | ray.ObjectRefGenerator):
            raise ValueError(f"cancel takes what run() returned, got {ref!r}")
        self._check_ray()
        cancelled = cancel(ref)
        if cancelled and isinstance(ref, ray.ObjectRef):
            # Ray notifies a dependent of the failure when its turn to run has come; this one need not wait
            # for that.
            interrupt(self._pending.takers(ref))
        return cancelled

    def _cancel_all(self, refs: list[Any]) -> None:
        interrupt(refs[::-1])

    def _future(self, ref: Any) -> "Future[Any]":
        return RayFuture(ref, self._waits)

    def _map_pace(self) -> MapPace:
        self._connect()
        cpus = int(cluster_resources().get("CPU", 1))
        # A task costs about a millisecond of the cluster's time, ten times what it does elsewhere.
        return MapPace(max(16, 4 * cpus), first=max(2, cpus), seconds=0.03, growth=16)

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not callable(fn):
            raise ValueError(f"a task needs a function, got {fn!r}")
        self._connect()
        prepared = self._calls.prepare(fn, options, streaming=is_generator_function(fn))
        payload = self._payloads.of(fn, prepared.accelerated)
        return self._send(prepared.send, fn, args, kwargs, *payload)

    def _send(
        self, send: Sender, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *leading: Any
    ) -> Any:
        """Make a call through Ray and remember it.

        Args:
            target: The function, or the name of an actor's call: after it is named what cannot be pickled.
            leading: Arguments of our own, before those of the user.
        """
        self._check_open()
        if (args or kwargs) and any(isinstance(arg, Future) for arg in (*args, *kwargs.values())):
            args = tuple(map(self._without_future, args))
            kwargs = {key: self._without_future(arg) for key, arg in kwargs.items()}
        try:
            answer = send(leading + args, kwargs)
        except Exception:
            explain_unpicklable(target, args, kwargs)
            raise
        call = target if isinstance(target, str) else None
        if kwargs:
            args = (*args, *kwargs.values())
        if isinstance(answer, list):  # what Ray's num_returns gives
            for one in answer:
                self._note(one, args, call)
        else:
            self._note(answer, args, call)
        return answer

    def _note(self, answer: Any, args: tuple[Any, ...], actor_call: str | None) -> None:
        if isinstance(answer, ray.ObjectRefGenerator):
            close_when_dropped(answer)
        if answer is None:  # what Ray's num_returns=0 gives: nothing to wait for
            return
        if self._connection is not None:  # a copy in a worker is never shut down, and need not remember
            self._pending.add(answer, args, actor_call)
        elif isinstance(answer, ray.ObjectRef):
            hold(answer)

    def _without_future(self, arg: Any) -> Any:
        return self._promises.argument(arg) if isinstance(arg, Future) else arg

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        self._connect()
        args = tuple(map(self._without_future, args))
        kwargs = {key: self._without_future(arg) for key, arg in kwargs.items()}
        return self._actors.create(cls, args, kwargs, options)

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the living actor of that name in the context's namespace."""
        return self._actors.find(name)

    def kill(self, handle: Any, /) -> None:
        """End an actor and its process, whatever it is doing."""
        if not isinstance(handle, ActorHandle) or not isinstance(handle._endpoint, RayEndpoint):
            raise ValueError(f"kill takes a handle that create_actor or get_actor returned, got {handle!r}")
        self._check_ray()
        self._actors.kill(handle._endpoint)

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """End the context; see `JobContext.shutdown`. The cluster runs on, unless this context started it.

        With `cancel_pending` tasks that run are interrupted too: Ray does not distinguish them from those
        that wait.
        """
        if self._connection is None:
            return
        self._shut_down = True
        if not self._connection.up:
            self._connection.close()
            return
        if cancel_pending:
            interrupt_all(self._pending)
        if wait:
            self._pending.drain()
            self._let_go(wait=not self._connection.private)

    def at_program_end(self, failed: bool) -> None:
        """Wait for tasks, and for a while for calls of actors; for nothing where the program failed."""
        connection = self._connection
        if connection is None or self._ended:
            return
        if not connection.up:
            connection.close()
            return
        finish(self._pending, failed)
        self._shut_down = True
        self._let_go(wait=False)

    def _let_go(self, *, wait: bool) -> None:
        self._ended = True
        self._work.detach()
        self._pending.close()
        interrupt(list(self._pending.streams))
        self._actors.end(wait=wait)
        self._promises.close()
        if self._connection is not None:
            self._connection.close()

    def __reduce__(self) -> tuple[Any, ...]:
        joined = self._connection is None or self._connection.up
        namespace = self.joined_namespace() if joined else self.namespace  # which connects
        return _attached, (self._identity, namespace, self._options)


# A context that comes back to its process, or twice to a worker, is the same object.
_by_identity: WeakValueDictionary[str, RayContext] = WeakValueDictionary()


def _attached(identity: str, namespace: str, options: dict[str, Any]) -> RayContext:
    context = _by_identity.get(identity)
    if context is None:
        context = RayContext.__new__(RayContext)
        context._connection = None
        context._set_up(identity, namespace, options)
    return context
