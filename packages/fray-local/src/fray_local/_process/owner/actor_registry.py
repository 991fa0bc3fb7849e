"""All actors of one context: made here, or found by name in a namespace that processes share."""

import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet, WeakValueDictionary

from fray import ActorAlreadyExistsError, ActorNotFoundError, UnsupportedError
from fray._engine.actors import Actor
from fray.job import ActorHandle, ActorOptions, Lifetime, TaskOptions
from fray_local._process.owner.actor_directory import DEFAULT, Card, Directory, family, new_card
from fray_local._process.owner.actor_process import Crew, ProcessEndpoint, remote_kind, stand_in
from fray_local._process.owner.calls import RemoteConstruction
from fray_local._process.owner.fork_server_client import current_directory
from fray_local._process.owner.shared_actors import PeerLink
from fray_local._process.owner.worker_connection import Link
from fray_local._process.owner.worker_process import Closing, WorkerProcess
from fray_local._process.protocol.serialization import PackedCall

if TYPE_CHECKING:
    from fray_local._process.context import ProcessContext

Hire = Callable[[Crew], Link]


class Troupe:
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
        self._crews: WeakSet[Crew] = WeakSet()

    @property
    def directory(self) -> Directory:
        """Where shared actors are found."""
        return Directory(self._shared or DEFAULT)

    def make(
        self, title: str, methods: Mapping[str, bool], packed: PackedCall, options: ActorOptions
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
            card, door = self._claim(title, methods, options)
            if card is not None and door is None:  # somebody else was faster
                return self._lost_claim(options)
            try:
                endpoint = self._new(title, methods, packed, options, card, door)
            except BaseException:  # the context is closing, say: the name must not stay taken
                if card is not None and door is not None:
                    door.close()
                    self.directory.remove(card)
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
            known = {*self._named, *(card.name for card in self.directory.living())}
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
            endpoint = self._connect(Directory(namespace), name)
        if endpoint is None:
            raise ActorNotFoundError(name)
        return endpoint

    def kill(self, endpoint: ProcessEndpoint) -> None:
        """End an actor and its process, whatever it does; its name is free at once."""
        if endpoint.card is not None:
            Directory(endpoint.card.namespace).remove(endpoint.card)
        crew = cast("Crew", endpoint.actor.mailbox)
        crew.doomed = True
        endpoint.actor.die("it was killed")
        crew.kill()

    def end(self) -> None:
        """Let actors of this context end, hang up on others; block until that is done."""
        crews = list(self._crews)
        for crew in crews:
            if crew.is_own:
                crew.close()
            else:
                crew.leave()
        for crew in crews:
            crew.close(wait=True)

    def abort(self) -> None:
        """End the actors of this context now."""
        for crew in list(self._crews):
            crew.doomed = crew.is_own
            crew.actor.die("its context was aborted")

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
    ) -> tuple[Card | None, socket.socket | None]:
        detached = options.lifetime is Lifetime.DETACHED
        if not detached and (self._shared is None or options.name is None):
            return None, None
        if detached and options.max_restarts:
            raise UnsupportedError("on 'process' nobody restarts a detached actor; leave max_restarts out")
        name = options.name or f"unnamed-{uuid.uuid4().hex[:8]}"
        label = f"{title}({options.name!r})" if options.name else title
        directory = self.directory
        card = new_card(
            directory.namespace,
            name,
            label,
            dict(methods),
            detached=detached,
            concurrency=options.max_concurrency,
        )
        return card, directory.claim(card)

    def _lost_claim(self, options: ActorOptions) -> ActorHandle:
        endpoint = self._find(str(options.name)) if options.get_if_exists else None
        if endpoint is None:
            raise ActorAlreadyExistsError(str(options.name))
        return ActorHandle(endpoint)

    def _new(
        self,
        title: str,
        methods: Mapping[str, bool],
        packed: PackedCall,
        options: ActorOptions,
        card: Card | None,
        door: socket.socket | None,
    ) -> ProcessEndpoint:
        detached = options.lifetime is Lifetime.DETACHED
        hire: Hire = (
            partial(self._hire_host, card, door)
            if detached
            else partial(self._hire_own, options.max_concurrency, door)
        )
        crew = Crew(self._context.hub, hire, options.max_restarts, own=not detached)
        endpoint = self._endpoint(title, methods, options, crew, card)
        actor = endpoint.actor
        if not detached:
            actor.on_death = lambda: self._died(options.name, actor, card)
            self._context.keep_actor(actor)
        actor.construct(cast("Any", title), cast("Any", packed), {})
        if options.max_restarts:
            crew.construct_again = lambda: self._construction(title, packed, actor, crew)
        return endpoint

    def _connect(self, directory: Directory, name: str) -> ProcessEndpoint | None:
        found = directory.find(name)
        if found is None:
            return None
        card, sock = found
        context = self._context

        def hire(crew: Crew) -> Link:
            return PeerLink(context.hub, sock, crew, context.budget, card.concurrency)

        crew = Crew(context.hub, hire, 0, own=False)
        title = card.label.partition("(")[0]
        endpoint = self._endpoint(title, card.methods, ActorOptions(name=card.name), crew, card)
        crew.employ()
        crew.resize(1)
        return endpoint

    def _endpoint(
        self, title: str, methods: Mapping[str, bool], options: ActorOptions, crew: Crew, card: Card | None
    ) -> ProcessEndpoint:
        def make(kind: Any, fn: Any, packed: PackedCall, kwargs: Any, pool: Any) -> Any:  # noqa: ARG001 - the engine's
            name = getattr(fn, "__name__", title)
            return self._context.make_call(remote_kind(kind), packed, name, pool)

        actor = Actor(stand_in(title, methods), options, crew, make)
        crew.actor = actor
        self._crews.add(crew)
        endpoint = ProcessEndpoint(actor, self._context, card)
        if endpoint.address is not None:
            self._at[endpoint.address] = endpoint
        return endpoint

    def _construction(self, title: str, packed: PackedCall, actor: Actor, crew: Crew) -> RemoteConstruction:
        again: RemoteConstruction = self._context.make_call(RemoteConstruction, packed, title, crew)
        again.actor = actor
        return again

    def _hire_own(self, concurrency: int, door: socket.socket | None, crew: Crew) -> Link:
        context = self._context
        env = dict(os.environ)
        return WorkerProcess(context.hub, context.forge, crew, context.requests, env, concurrency, door)

    def _hire_host(self, card: Card | None, door: socket.socket | None, crew: Crew) -> Link:
        assert card is not None
        assert door is not None
        context = self._context
        ours, theirs = socket.socketpair()
        given = [theirs.detach(), door.detach()]
        env = {**os.environ, "FRAY_JOB_DIR": "detached", "FRAY_ACTOR_CONCURRENCY": str(card.concurrency)}
        log = os.fspath(self.directory.log_path(card.name))
        settings = {"env": env, "path": sys.path, "cwd": current_directory(), "log": log}
        context.forge.host(settings, given, Closing(given))
        return PeerLink(context.hub, ours, crew, context.budget, card.concurrency)

    def _died(self, name: str | None, actor: Actor, card: Card | None) -> None:
        known = self._named.get(name) if name is not None else None
        if known is not None and known.actor is actor:
            del self._named[known.actor.name or ""]
        if card is not None:
            Directory(card.namespace).remove(card)
