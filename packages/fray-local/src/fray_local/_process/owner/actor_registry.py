"""All actors of one context: made here, or found by name in a namespace that processes share."""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from fray import ActorAlreadyExistsError, ActorNotFoundError, UnsupportedError
from fray.backend import PackedCall, dispatch, guarded
from fray.job import ActorHandle, ActorOptions, Lifetime, TaskOptions
from fray_local._process.owner.actor_directory import DEFAULT, ActorDirectory, ActorRecord, family, new_record
from fray_local._process.owner.actor_process import ActorProcess, ProcessEndpoint
from fray_local._process.owner.fork_server_client import import_path
from fray_local._process.owner.shared_actors import SharedActorConnection
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.owner.worker_process import Closing, WorkerProcess
from fray_local._process.protocol.messages import StartDetached

if TYPE_CHECKING:
    from fray_local._process.context import ProcessContext
    from fray_local._process.owner.runner import ProcessRunner

StartWorker = Callable[[ActorProcess], WorkerConnection]


class NotReentrantLock:
    """A lock that raises where its own thread holds it: a finalizer in there would never get it."""

    def __init__(self) -> None:
        self._lock, self._holder = threading.Lock(), 0

    def __enter__(self) -> None:
        if self._holder == threading.get_ident():
            raise RuntimeError(
                "a finalizer or a signal handler interrupted this thread while it made or looked for an "
                "actor, and asks for one itself: do that in a task or a thread"
            )
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holder = 0
        self._lock.release()


class ActorRegistry:
    """Makes, finds and ends the actors of a context.

    Args:
        namespace: Where named actors are shared; None shares none but detached ones.
    """

    def __init__(self, context: "ProcessContext", runner: "ProcessRunner", namespace: str | None) -> None:
        self._context, self._runner = context, runner
        self._shared = namespace or family()
        self._lock = NotReentrantLock()
        self._named: dict[str, ProcessEndpoint] = {}
        self._at: WeakValueDictionary[tuple[str, str, str], ProcessEndpoint] = WeakValueDictionary()
        self._processes: WeakSet[ActorProcess] = WeakSet()

    @property
    def directory(self) -> ActorDirectory:
        """Where shared actors are found."""
        return ActorDirectory(self._shared or DEFAULT)

    def make(
        self,
        title: str,
        methods: Mapping[str, bool],
        packed: PackedCall,
        options: ActorOptions,
        *,
        asynchronous: bool,
        caller: Hashable = None,
    ) -> ActorHandle:
        """Make an actor whose class and arguments are packed, or find it.

        Raises:
            ActorAlreadyExistsError: The name is taken and `get_if_exists` is not set.
        """
        self._runner.ensure_started()
        self._runner.machine.needs_of(TaskOptions(resources={"CPU": 0, **options.resources}))
        with self._lock, guarded():
            existing = None if options.name is None else self._find(options.name)
            if existing is not None:
                if options.get_if_exists:
                    return ActorHandle(existing)
                raise ActorAlreadyExistsError(str(options.name))
            record, listener = self._claim(title, methods, options, asynchronous=asynchronous)
            if record is not None and listener is None:  # somebody else was faster
                return self._lost_claim(options)
            try:
                endpoint = self._new(title, methods, options, record, listener, asynchronous=asynchronous)
                endpoint.actor.construct(packed, caller=caller)
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
        self._runner.ensure_started()
        with self._lock, guarded():
            endpoint = self._find(name)
        if endpoint is None:
            known = {*self._named, *(record.name for record in self.directory.living())}
            raise ActorNotFoundError(name, sorted(known))
        return ActorHandle(endpoint)

    def at(self, address: tuple[str, str, str]) -> ProcessEndpoint:
        """Return the endpoint of an actor whose handle came from another process."""
        self._runner.ensure_started()
        namespace, name, _ = address
        with self._lock, guarded():
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
        dispatch(endpoint.actor.die("it was killed"))

    def end(self) -> None:
        """Let actors of this context end, hang up on others; block until that is done."""
        processes = list(self._processes)
        for process in processes:
            process.close(wait=False)
        for process in processes:
            process.close(wait=True)

    def abort(self) -> None:
        """End the processes of this context's actors now."""
        for process in list(self._processes):
            process.kill()

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
        self, title: str, methods: Mapping[str, bool], options: ActorOptions, *, asynchronous: bool
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
            concurrency=options.concurrency(asynchronous),
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
        options: ActorOptions,
        record: ActorRecord | None,
        listener: socket.socket | None,
        *,
        asynchronous: bool,
    ) -> ProcessEndpoint:
        detached = options.lifetime is Lifetime.DETACHED
        concurrency = options.concurrency(asynchronous)
        start_worker: StartWorker = (
            partial(self._start_detached, record, listener)
            if detached
            else partial(self._start_own, concurrency, listener)
        )
        endpoint = self._endpoint(title, methods, options, start_worker, record, own=not detached)
        if not detached:
            actor = endpoint.actor
            actor.on_death.append(lambda: self._died(options.name, actor, record))
        return endpoint

    def _connect(self, directory: ActorDirectory, name: str) -> ProcessEndpoint | None:
        found = directory.find(name)
        if found is None:
            return None
        record, sock = found

        def start_worker(process: ActorProcess) -> WorkerConnection:
            runner = self._runner
            return SharedActorConnection(runner.loop, sock, process, runner.budget, record.concurrency)

        title, options = record.label.partition("(")[0], ActorOptions(name=record.name)
        endpoint = self._endpoint(title, record.methods, options, start_worker, record, own=False)
        endpoint.process.connect()
        endpoint.actor.open()
        return endpoint

    def _endpoint(
        self,
        title: str,
        methods: Mapping[str, bool],
        options: ActorOptions,
        start_worker: StartWorker,
        record: ActorRecord | None,
        *,
        own: bool,
    ) -> ProcessEndpoint:
        context = self._context
        process = ActorProcess(self._runner.loop, self._runner.budget, start_worker, own=own)
        actor = context.engine.new_actor(title, methods, options, runner=process)
        process.actor = actor
        self._processes.add(process)
        endpoint = ProcessEndpoint(actor, process, context, record)
        if endpoint.address is not None:
            self._at[endpoint.address] = endpoint
        return endpoint

    def _start_own(
        self, concurrency: int, listener: socket.socket | None, process: ActorProcess
    ) -> WorkerConnection:
        runner = self._runner
        return WorkerProcess(
            runner.loop,
            runner.fork_servers,
            process,
            runner.requests,
            dict(os.environ),
            concurrency,
            listener,
        )

    def _start_detached(
        self, record: ActorRecord | None, listener: socket.socket | None, process: ActorProcess
    ) -> WorkerConnection:
        assert record is not None
        assert listener is not None
        runner = self._runner
        ours, theirs = socket.socketpair()
        given = [theirs.detach(), listener.detach()]
        env = {**os.environ, "FRAY_JOB_DIR": "detached", "FRAY_ACTOR_CONCURRENCY": str(record.concurrency)}
        log = os.fspath(self.directory.log_path(record.name))
        runner.fork_servers.start_detached(StartDetached(env, import_path(), log), given, Closing(given))
        return SharedActorConnection(runner.loop, ours, process, runner.budget, record.concurrency)

    def _died(self, name: str | None, actor: Any, record: ActorRecord | None) -> None:
        known = self._named.get(name) if name is not None else None
        if known is not None and known.actor is actor:
            del self._named[known.actor.name or ""]
        if record is not None:
            ActorDirectory(record.namespace).remove(record)
