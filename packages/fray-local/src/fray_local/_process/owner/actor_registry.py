"""All actors of one context: made here, or found by name in a namespace that processes share."""

import os
import socket
import uuid
import weakref
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from weakref import WeakSet, WeakValueDictionary

from fray import ActorAlreadyExistsError, ActorNotFoundError, UnsupportedError
from fray.backend import PackedCall, dispatch
from fray.job import ActorHandle, ActorOptions, Lifetime
from fray_local._process.owner.actor_directory import DEFAULT, ActorDirectory, ActorRecord, family, new_record
from fray_local._process.owner.actor_process import ActorProcess, ProcessEndpoint
from fray_local._process.owner.fork_server_client import import_path
from fray_local._process.owner.interfaces import OwnerContext, Runner
from fray_local._process.owner.resources import PLAIN, Needs
from fray_local._process.owner.shared_actors import SharedActorConnection
from fray_local._process.owner.shared_actors import kill as kill_at
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.owner.worker_process import Closing, WorkerProcess
from fray_local._process.protocol.messages import StartDetached

_KILL_SECONDS = 5.0  # that an actor has to end which this context has no connection to any more
StartWorker = Callable[[ActorProcess], WorkerConnection]


class ActorRegistry:
    """Makes, finds and ends the actors of a context.

    There is no lock: a finalizer that makes an actor may interrupt its own thread while that makes one. A
    name is taken by one `dict.setdefault`, before its actor is made; calls wait in the actor until it is.

    Args:
        namespace: Where named actors are shared; None shares none but detached ones.
    """

    def __init__(self, context: OwnerContext, runner: Runner, namespace: str | None) -> None:
        self._context, self._runner = context, runner
        self._shared = namespace or family()
        self._named: dict[str, ProcessEndpoint] = {}
        self._at: WeakValueDictionary[tuple[str, str, str], ProcessEndpoint] = WeakValueDictionary()
        self._processes: WeakSet[ActorProcess] = WeakSet()

    def _ensure_started(self) -> None:
        """Start what the first actor takes, unless the context has ended, tasks that may go on included."""
        scope = self._context.engine.scope
        if not scope.open:
            scope.check_open()
        self._runner.ensure_started()

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
        self._ensure_started()
        needs = self._runner.machine.needs_of_actor(options)
        name = options.name
        existing = None if name is None else self._find(name)
        if existing is None:
            made = self._new(title, methods, options, needs, asynchronous=asynchronous)
            existing = None if name is None else self._name(name, made)
            if existing in (None, made) and self._construct(made, packed, caller):
                if name is None:
                    made.close_when_dropped()
                return ActorHandle(made)
            # another caller was faster
            existing = existing if existing is not made else self._find(str(name))
        if existing is None or not options.get_if_exists:
            raise ActorAlreadyExistsError(str(name))
        return ActorHandle(existing)

    def failed(self, title: str, methods: Mapping[str, bool], error: Exception) -> ProcessEndpoint:
        """Return the endpoint of an actor that could not be made: its calls say why."""

        def refuse(_: ActorProcess) -> WorkerConnection:
            raise error

        endpoint = self._endpoint(title, methods, ActorOptions(), refuse, None, own=False)
        dispatch(endpoint.actor.die("it could not be made: {cause}", error))
        return endpoint

    def get(self, name: str) -> ActorHandle:
        """Return a handle to the living actor of that name, or raise ActorNotFoundError."""
        self._ensure_started()
        endpoint = self._find(name)
        if endpoint is None:
            known = {*self._named, *(record.name for record in self.directory.living())}
            raise ActorNotFoundError(name, sorted(known))
        return ActorHandle(endpoint)

    def at(self, address: tuple[str, str, str]) -> ProcessEndpoint:
        """Return the endpoint of an actor whose handle came from another process."""
        self._ensure_started()
        namespace, name, _ = address
        known = self._at.get(address)
        if known is not None and not known.actor.dead:
            return known
        endpoint = self._connect(ActorDirectory(namespace), name, address)
        if endpoint is None:
            raise ActorNotFoundError(name)
        endpoint.close_when_dropped()  # each handle that arrives later would leave a connection behind
        return endpoint

    def kill(self, endpoint: ProcessEndpoint) -> None:
        """End an actor and its process, whatever it does; its name is free at once."""
        record = endpoint.record
        # A detached one may live on without this context, and another's may just be made again.
        unreached = endpoint.actor.dead or endpoint.process.looking
        dispatch(endpoint.actor.die("it was killed"))  # before its files, which may be out of reach
        if record is not None and unreached:
            sock = ActorDirectory(record.namespace).reach(record)
            if sock is not None:
                kill_at(sock, _KILL_SECONDS)
        if record is not None:
            self._free(record, wait=True)

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

    # Names.

    def _find(self, name: str) -> ProcessEndpoint | None:
        known = self._named.get(name)
        if known is not None and not known.actor.dead:
            return known
        endpoint = self._connect(self.directory, name)
        if endpoint is None:
            return None
        named = self._name(name, endpoint)
        if named is not endpoint:  # another thread was faster, or a finalizer in this one
            endpoint.actor.retire()
        return named

    def _name(self, name: str, endpoint: ProcessEndpoint) -> ProcessEndpoint:
        """Give an endpoint a name, unless a living one has it; return the one that has it."""
        while (known := self._named.setdefault(name, endpoint)) is not endpoint:
            if not known.actor.dead:
                return known
            self._forget(name, known)
        return endpoint

    def _forget(self, name: str, endpoint: ProcessEndpoint) -> None:
        # No call comes between the look and the deletion: nobody else runs there.
        try:
            if self._named[name] is endpoint:
                del self._named[name]
        except KeyError:
            return

    # Making.

    def _construct(self, endpoint: ProcessEndpoint, packed: PackedCall, caller: Hashable) -> bool:
        """Take the actor's name in its namespace, if it has one, and make it; False where it is taken."""
        actor, process, record = endpoint.actor, endpoint.process, endpoint.record
        try:
            if record is not None:
                process.listener = ActorDirectory(record.namespace).claim(record)
                if process.listener is None:
                    dispatch(actor.die("another process has made an actor of that name"))
                    return False
            actor.construct(packed, caller=caller)
        except BaseException as error:  # the context is closing, say: the name must not stay taken
            dispatch(actor.die("it could not be made: {cause}", error))
            raise
        finally:
            # also where another caller found it by its name and killed it, before it had a record
            if actor.dead:
                process.close(wait=False)
                if record is not None:
                    ActorDirectory(record.namespace).remove(record)
        return True

    def _record(
        self, title: str, methods: Mapping[str, bool], options: ActorOptions, *, asynchronous: bool
    ) -> ActorRecord | None:
        """Return what others may know of an actor that is to be made; None where nobody may."""
        detached = options.lifetime is Lifetime.DETACHED
        if not detached and (self._shared is None or options.name is None):
            return None
        if detached and options.max_restarts:
            raise UnsupportedError("on 'process' nobody restarts a detached actor; leave max_restarts out")
        return new_record(
            self.directory.namespace,
            options.name or f"unnamed-{uuid.uuid4().hex[:8]}",
            _label(title, options),
            dict(methods),
            detached=detached,
            concurrency=options.concurrency(asynchronous),
            max_restarts=options.max_restarts,
        )

    def _new(
        self,
        title: str,
        methods: Mapping[str, bool],
        options: ActorOptions,
        needs: Needs,
        *,
        asynchronous: bool,
    ) -> ProcessEndpoint:
        record = self._record(title, methods, options, asynchronous=asynchronous)
        detached = options.lifetime is Lifetime.DETACHED
        start_worker: StartWorker = (
            partial(self._start_detached, record)
            if detached
            else partial(self._start_own, options.concurrency(asynchronous))
        )
        return self._endpoint(title, methods, options, start_worker, record, own=not detached, needs=needs)

    def _connect(
        self, directory: ActorDirectory, name: str, address: tuple[str, str, str] | None = None
    ) -> ProcessEndpoint | None:
        found = directory.find(name)
        if found is None:
            return None
        record, sock = found
        if address not in (None, record.address):  # another actor has the name by now
            sock.close()
            return None

        def start_worker(process: ActorProcess) -> WorkerConnection:
            runner, sock = self._runner, process.sock
            assert sock is not None
            return SharedActorConnection(runner.loop, sock, process, runner.budget, record.concurrency)

        title, options = record.label.partition("(")[0], ActorOptions(name=record.name)
        endpoint = self._endpoint(title, record.methods, options, start_worker, record, own=False)
        process = endpoint.process
        process.restarts, process.find_next = record.max_restarts, partial(self._find_next, record)
        process.connect(sock)
        endpoint.actor.open()
        return endpoint

    def _find_next(self, record: ActorRecord, process: ActorProcess, reason: str) -> None:
        """Connect to the process that another context starts after one that is gone, or let the actor die."""

        def find() -> None:
            try:
                sock = ActorDirectory(record.namespace).reach(record)
            except OSError as error:  # it accepts no connection, or no descriptor is left
                dispatch(
                    process.actor.die(f"{reason}, and the next one could not be reached: {{cause}}", error)
                )
                return
            if sock is None:
                dispatch(process.actor.die(reason))
            else:
                process.connect(sock)

        self._runner.call_back(find)

    def _endpoint(
        self,
        title: str,
        methods: Mapping[str, bool],
        options: ActorOptions,
        start_worker: StartWorker,
        record: ActorRecord | None,
        *,
        own: bool,
        needs: Needs = PLAIN,
    ) -> ProcessEndpoint:
        context, runner = self._context, self._runner
        process = ActorProcess(
            runner.loop,
            runner.budget,
            start_worker,
            own=own,
            reserving=runner.scheduler,
            needs=needs,
            label=_label(title, options),
        )
        actor = context.engine.new_actor(title, methods, options, runner=process)
        process.actor = actor
        self._processes.add(process)
        endpoint = ProcessEndpoint(actor, process, context, runner, record)
        if endpoint.address is not None:
            self._at[endpoint.address] = endpoint
        if options.name is not None or own:
            known, name = weakref.ref(endpoint), options.name
            actor.on_death.append(lambda: self._died(name, known(), process, record if own else None))
        return endpoint

    def _start_own(self, concurrency: int, process: ActorProcess) -> WorkerConnection:
        runner = self._runner
        return WorkerProcess(
            runner.loop,
            runner.fork_servers,
            process,
            runner.requests,
            process.environ,
            concurrency,
            process.listener and process.listener.dup(),
        )

    def _start_detached(self, record: ActorRecord | None, process: ActorProcess) -> WorkerConnection:
        listener, process.listener = process.listener, None
        assert record is not None
        assert listener is not None
        runner = self._runner
        ours, theirs = socket.socketpair()
        given = [theirs.detach(), listener.detach()]
        env = {
            **process.environ,
            "FRAY_JOB_DIR": "detached",
            "FRAY_ACTOR_CONCURRENCY": str(record.concurrency),
        }
        log = os.fspath(self.directory.log_path(record.name))
        runner.fork_servers.start_detached(StartDetached(env, import_path(), log), given, Closing(given))
        return SharedActorConnection(runner.loop, ours, process, runner.budget, record.concurrency)

    def _died(
        self,
        name: str | None,
        endpoint: ProcessEndpoint | None,
        process: ActorProcess,
        record: ActorRecord | None,
    ) -> None:
        if name is not None and endpoint is not None:
            self._forget(name, endpoint)
        if record is not None:
            # Before a caller knows of the death: a record that cannot be removed now is no living actor's.
            process.stop_listening()
            self._free(record, wait=False)  # this may be the thread that takes in every result

    def _free(self, record: ActorRecord, *, wait: bool) -> None:
        """Free the name of an actor that is dead."""
        try:
            ActorDirectory(record.namespace).remove(record, wait=wait)
        except BlockingIOError:
            self._runner.call_back(partial(self._free, record, wait=True))
        except OSError:
            return  # no descriptor is left, say: the record goes with the next claim


def _label(title: str, options: ActorOptions) -> str:
    return f"{title}({options.name!r})" if options.name else title
