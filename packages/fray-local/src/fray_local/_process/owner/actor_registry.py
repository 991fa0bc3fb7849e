"""All actors of one context: made here, or found by name in a namespace that processes share."""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet, WeakValueDictionary

from fray import ActorAlreadyExistsError, ActorNotFoundError, UnsupportedError
from fray._engine.actors import Actor
from fray.job import ActorHandle, ActorOptions, Lifetime, TaskOptions
from fray_local._process.owner.actor_directory import DEFAULT, ActorDirectory, ActorRecord, family, new_record
from fray_local._process.owner.actor_process import ActorProcess, ProcessEndpoint, remote_kind, stand_in
from fray_local._process.owner.calls import RemoteConstruction
from fray_local._process.owner.fork_server_client import import_path
from fray_local._process.owner.shared_actors import SharedActorConnection
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.owner.worker_process import Closing, WorkerProcess
from fray_local._process.protocol.messages import StartDetached
from fray_local._process.protocol.serialization import SerializedCall

if TYPE_CHECKING:
    from fray_local._process.context import ProcessContext

StartWorker = Callable[[ActorProcess], WorkerConnection]


class ActorRegistry:
    """Makes, finds and ends the actors of a context.

    Args:
        namespace: Where named actors are shared; None shares none but detached ones.
    """

    def __init__(self, context: "ProcessContext", namespace: str | None) -> None:
        self._context = context
        self._shared = namespace or family()
        self._lock = threading.Lock()
        self._named: dict[str, ProcessEndpoint] = {}
        self._at: WeakValueDictionary[tuple[str, str, str], ProcessEndpoint] = WeakValueDictionary()
        self._processes: WeakSet[ActorProcess] = WeakSet()

    @property
    def directory(self) -> ActorDirectory:
        """Where shared actors are found."""
        return ActorDirectory(self._shared or DEFAULT)

    def make(
        self, title: str, methods: Mapping[str, bool], packed: SerializedCall, options: ActorOptions
    ) -> ActorHandle:
        """Make an actor whose class and arguments are packed, or find it.

        Raises:
            ActorAlreadyExistsError: The name is taken and `get_if_exists` is not set.
        """
        self._context.processes()
        self._context.machine.needs_of(TaskOptions(resources={"CPU": 0, **options.resources}))
        with self._lock:
            existing = None if options.name is None else self._find(options.name)
            if existing is not None:
                if options.get_if_exists:
                    return ActorHandle(existing)
                raise ActorAlreadyExistsError(str(options.name))
            record, listener = self._claim(title, methods, options)
            if record is not None and listener is None:  # somebody else was faster
                return self._lost_claim(options)
            try:
                endpoint = self._new(title, methods, packed, options, record, listener)
            except BaseException:  # the context is closing, say: the name must not stay taken
                if record is not None and listener is not None:
                    listener.close()
                    self.directory.remove(record)
                raise
            if options.name is not None:
                self._named[options.name] = endpoint
        if options.name is None:
            endpoint.close_when_dropped()
        return ActorHandle(endpoint)

    def get(self, name: str) -> ActorHandle:
        """Return a handle to the living actor of that name, or raise ActorNotFoundError."""
        self._context.processes()
        with self._lock:
            endpoint = self._find(name)
        if endpoint is None:
            known = {*self._named, *(record.name for record in self.directory.living())}
            raise ActorNotFoundError(name, sorted(known))
        return ActorHandle(endpoint)

    def at(self, address: tuple[str, str, str]) -> ProcessEndpoint:
        """Return the endpoint of an actor whose handle came from another process."""
        self._context.processes()
        namespace, name, _ = address
        with self._lock:
            known = self._at.get(address)
            if known is not None and not known.actor.dead:
                return known
            endpoint = self._connect(ActorDirectory(namespace), name)
        if endpoint is None:
            raise ActorNotFoundError(name)
        return endpoint

    def kill(self, endpoint: ProcessEndpoint) -> None:
        """End an actor and its process, whatever it does; its name is free at once."""
        if endpoint.record is not None:
            ActorDirectory(endpoint.record.namespace).remove(endpoint.record)
        process = cast("ActorProcess", endpoint.actor.mailbox)
        process.doomed = True
        endpoint.actor.die("it was killed")
        process.kill()

    def end(self) -> None:
        """Let actors of this context end, hang up on others; block until that is done."""
        processes = list(self._processes)
        for process in processes:
            if process.is_own:
                process.close()
            else:
                process.leave()
        for process in processes:
            process.close(wait=True)

    def abort(self) -> None:
        """End the actors of this context now."""
        for process in list(self._processes):
            process.doomed = process.is_own
            process.actor.die("its context was aborted")

    # Under the lock.

    def _find(self, name: str) -> ProcessEndpoint | None:
        known = self._named.get(name)
        if known is not None and not known.actor.dead:
            return known
        endpoint = self._connect(self.directory, name)
        if endpoint is not None:
            self._named[name] = endpoint
        return endpoint

    def _claim(
        self, title: str, methods: Mapping[str, bool], options: ActorOptions
    ) -> tuple[ActorRecord | None, socket.socket | None]:
        detached = options.lifetime is Lifetime.DETACHED
        if not detached and (self._shared is None or options.name is None):
            return None, None
        if detached and options.max_restarts:
            raise UnsupportedError("on 'process' nobody restarts a detached actor; leave max_restarts out")
        name = options.name or f"unnamed-{uuid.uuid4().hex[:8]}"
        label = f"{title}({options.name!r})" if options.name else title
        directory = self.directory
        record = new_record(
            directory.namespace,
            name,
            label,
            dict(methods),
            detached=detached,
            concurrency=(options.max_concurrency or 1),
        )
        return record, directory.claim(record)

    def _lost_claim(self, options: ActorOptions) -> ActorHandle:
        endpoint = self._find(str(options.name)) if options.get_if_exists else None
        if endpoint is None:
            raise ActorAlreadyExistsError(str(options.name))
        return ActorHandle(endpoint)

    def _new(
        self,
        title: str,
        methods: Mapping[str, bool],
        packed: SerializedCall,
        options: ActorOptions,
        record: ActorRecord | None,
        listener: socket.socket | None,
    ) -> ProcessEndpoint:
        detached = options.lifetime is Lifetime.DETACHED
        start_worker: StartWorker = (
            partial(self._start_detached, record, listener)
            if detached
            else partial(self._start_own, (options.max_concurrency or 1), listener)
        )
        process = ActorProcess(self._context.loop, start_worker, options.max_restarts, own=not detached)
        endpoint = self._endpoint(title, methods, options, process, record)
        actor = endpoint.actor
        if not detached:
            actor.on_death = lambda: self._died(options.name, actor, record)
            self._context.keep_actor(actor)
        actor.construct(cast("Any", title), cast("Any", packed), {})
        if options.max_restarts:
            process.construct_again = lambda: self._construction(title, packed, actor, process)
        return endpoint

    def _connect(self, directory: ActorDirectory, name: str) -> ProcessEndpoint | None:
        found = directory.find(name)
        if found is None:
            return None
        record, sock = found
        context = self._context

        def start_worker(process: ActorProcess) -> WorkerConnection:
            return SharedActorConnection(context.loop, sock, process, context.budget, record.concurrency)

        process = ActorProcess(context.loop, start_worker, 0, own=False)
        title = record.label.partition("(")[0]
        endpoint = self._endpoint(title, record.methods, ActorOptions(name=record.name), process, record)
        process.connect()
        process.resize(1)
        return endpoint

    def _endpoint(
        self,
        title: str,
        methods: Mapping[str, bool],
        options: ActorOptions,
        process: ActorProcess,
        record: ActorRecord | None,
    ) -> ProcessEndpoint:
        def make(kind: Any, fn: Any, packed: SerializedCall, kwargs: Any, pool: Any) -> Any:  # noqa: ARG001 - the engine's
            name = getattr(fn, "__name__", title)
            return self._context.make_call(remote_kind(kind), packed, name, pool)

        actor = Actor(stand_in(title, methods), options, process, make)
        process.actor = actor
        self._processes.add(process)
        endpoint = ProcessEndpoint(actor, self._context, record)
        if endpoint.address is not None:
            self._at[endpoint.address] = endpoint
        return endpoint

    def _construction(
        self, title: str, packed: SerializedCall, actor: Actor, process: ActorProcess
    ) -> RemoteConstruction:
        again: RemoteConstruction = self._context.make_call(RemoteConstruction, packed, title, process)
        again.actor = actor
        return again

    def _start_own(
        self, concurrency: int, listener: socket.socket | None, process: ActorProcess
    ) -> WorkerConnection:
        context = self._context
        env = dict(os.environ)
        return WorkerProcess(
            context.loop, context.fork_servers, process, context.requests, env, concurrency, listener
        )

    def _start_detached(
        self, record: ActorRecord | None, listener: socket.socket | None, process: ActorProcess
    ) -> WorkerConnection:
        assert record is not None
        assert listener is not None
        context = self._context
        ours, theirs = socket.socketpair()
        given = [theirs.detach(), listener.detach()]
        env = {**os.environ, "FRAY_JOB_DIR": "detached", "FRAY_ACTOR_CONCURRENCY": str(record.concurrency)}
        log = os.fspath(self.directory.log_path(record.name))
        context.fork_servers.start_detached(StartDetached(env, import_path(), log), given, Closing(given))
        return SharedActorConnection(context.loop, ours, process, context.budget, record.concurrency)

    def _died(self, name: str | None, actor: Actor, record: ActorRecord | None) -> None:
        known = self._named.get(name) if name is not None else None
        if known is not None and known.actor is actor:
            del self._named[known.actor.name or ""]
        if record is not None:
            ActorDirectory(record.namespace).remove(record)
