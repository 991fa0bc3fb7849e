"""The contexts of this process: the engine with a runner that runs calls inline, or in threads."""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fray import ActorAlreadyExistsError, ActorNotFoundError
from fray.backend import (
    Actor,
    ContextCapabilities,
    EngineEndpoint,
    EngineRef,
    PickledValue,
    TaskRunnerContext,
    check_count,
    end_at_exit,
)
from fray.job import ActorHandle, ActorOptions, Lifetime
from fray_local._portable_options import check_portable
from fray_local._runners.inline import InlineRunner
from fray_local._runners.threads import ThreadRunner

T = TypeVar("T")


class _LocalContext(TaskRunnerContext):
    """What both have: detached actors, which belong to the process and not to the context that made them."""

    capabilities = ContextCapabilities(
        serializes=True,
        streams=True,
        parked_streams=True,
        nested_tasks=True,
        nested_threads=True,
        actors=True,
        named_actors=True,
        detached_actors=True,
        async_actors=True,
        at_most_once=True,
        reentrant=True,
        program_end=True,
    )

    def __init__(
        self,
        runner: InlineRunner | ThreadRunner,
        *,
        stream_buffer: int,
        max_retries: int | None,
        namespace: str | None,
        checked: bool,
        **configured: int,
    ) -> None:
        super().__init__(runner, stream_buffer=stream_buffer, max_retries=max_retries)
        self._checked, self._namespace = checked, namespace
        self._residents: set[Any] = set()  # of a home: living detached actors, and those that are being made
        self.capabilities = type(self).capabilities.but(serializes=checked, **configured)
        end_at_exit(self)

    def _home(self) -> "_LocalContext | None":
        """Return the context that detached actors live in: one for each namespace, which nobody closes."""
        return _homes.get((type(self), self._checked, self._namespace))

    def put(self, obj: T, /) -> EngineRef[T]:
        """Store a value; that is a reference to the very object, or with checks to a copy."""
        return self.engine.put(PickledValue(obj, "the object given to put()") if self._checked else obj)

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        detached = options.lifetime is Lifetime.DETACHED
        elsewhere = self if detached else self._home()
        other = None if elsewhere is None else elsewhere._named.get(options.name or "")
        if other is not None:
            if options.get_if_exists:
                return ActorHandle(other)
            raise ActorAlreadyExistsError(str(options.name))
        if not detached:
            return super()._start_actor(cls, args, kwargs, options)
        self.engine.scope.check_open()
        making = object()  # keeps the home from ending with another actor meanwhile
        home = self._enter_home(making)
        try:
            handle = TaskRunnerContext._start_actor(home, cls, args, kwargs, options)
            endpoint: Any = handle._endpoint
            with _homes_lock:
                if not endpoint.actor.dead:  # else it has left already
                    home._residents.add(endpoint)
        finally:
            home._leave(making)
        return handle

    def _enter_home(self, resident: Any) -> "_LocalContext":
        key = type(self), self._checked, self._namespace
        with _homes_lock:
            home = _homes.get(key)
            if home is None:
                home = type(self)(check_serialization=self._checked, namespace=self._namespace)  # type: ignore[call-arg]
                home = _homes.setdefault(key, home)  # a finalizer in this thread may have been faster
            home._residents.add(resident)
        return home

    def _leave(self, resident: Any) -> None:
        """Of a home: end with the last actor that lives in it."""
        with _homes_lock:
            self._residents.discard(resident)
            if self._residents:
                return
            key = type(self), self._checked, self._namespace
            if _homes.get(key) is self:
                del _homes[key]
        self.shutdown(wait=False)

    def _endpoint(self, actor: Actor) -> EngineEndpoint:
        endpoint = super()._endpoint(actor)
        if actor.options.lifetime is Lifetime.DETACHED:
            actor.on_death.append(partial(self._leave, endpoint))
        return endpoint

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name, of this context or detached in this process."""
        home = self._home()
        detached = {} if home is None else home._named
        endpoint = self._named.get(name) or detached.get(name)
        if endpoint is None:
            raise ActorNotFoundError(name, sorted({*self._named, *detached}))
        return ActorHandle(endpoint)


_homes: dict[Any, _LocalContext] = {}
_homes_lock = threading.RLock()


def _forget_homes() -> None:
    """In a forked child: detached actors are the parent's."""
    global _homes_lock
    _homes_lock = threading.RLock()
    _homes.clear()


os.register_at_fork(after_in_child=_forget_homes)


class SyncContext(_LocalContext):
    """Runs every task inside the call that submits it: what a debugger wants, and the plainest oracle.

    An async actor has a thread for its event loop here too, and what waits for its results runs in one more.
    `max_workers`, `num_cpus` and `memory` are hints.

    Args:
        check_serialization: Pickle arguments and results as a cluster would, so that what cannot
            travel is found here, and so is code that relies on shared memory.
        max_retries: Of every task without a `max_retries` of its own.
        namespace: Contexts of one namespace share their detached actors.
    """

    capabilities = _LocalContext.capabilities.but(inline=True, run_ahead=0)

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        check_serialization: bool = False,
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
    ) -> None:
        check_portable(num_cpus, memory, namespace)
        if max_workers is not None:
            check_count("max_workers", max_workers, 1)
        super().__init__(
            InlineRunner(check_serialization=check_serialization),
            stream_buffer=0,
            max_retries=max_retries,
            namespace=namespace,
            checked=check_serialization,
        )

    def _map_window(self) -> int:
        return 1


class ThreadContext(_LocalContext):
    """Runs tasks in threads of this process: no copies, no isolation, nesting to any depth at any size.

    `memory` is a hint.

    Args:
        max_workers: Tasks that run at the same time; a task that waits for another does not count, nor one
            that waits in `threading` (`join`, a condition) while another thread needs its place for a result.
            It continues at once when that wait ends, even if more than these run then.
            By default as many as the standard library's ThreadPoolExecutor: CPUs + 4, at most 32.
        check_serialization: Pickle arguments and results as a cluster would.
        stream_buffer: Items that a generator task may be ahead of its consumer.
        num_cpus: Without `max_workers`, as many tasks at the same time.
        max_retries: Of every task without a `max_retries` of its own.
        namespace: Contexts of one namespace share their detached actors.
    """

    capabilities = _LocalContext.capabilities.but(max_workers=True, run_ahead=64, concurrent_actors=True)

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        check_serialization: bool = False,
        stream_buffer: int = 16,
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
    ) -> None:
        check_portable(num_cpus, memory, namespace)
        usual = min(32, (os.cpu_count() or 1) + 4) if num_cpus is None else max(1, int(num_cpus))
        workers = usual if max_workers is None else max_workers
        check_count("max_workers", workers, 1)
        check_count("stream_buffer", stream_buffer, 1)
        self._workers = workers
        super().__init__(
            ThreadRunner(workers, check_serialization=check_serialization),
            stream_buffer=stream_buffer,
            max_retries=max_retries,
            namespace=namespace,
            checked=check_serialization,
            run_ahead=stream_buffer,
        )

    def _map_window(self) -> int:
        return max(16, 4 * self._workers)
