"""The actors of a context over a remote engine: made, found by name, handed over and killed."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from fray._contexts.remote.actors import ActorCaller
from fray._contexts.remote.names import ActorRecord
from fray._contexts.remote.session import Session
from fray._contexts.remote.travel import TravellingContext
from fray._contracts.actor_handle import ActorHandle, actor_methods
from fray._engine.actor_endpoint import EngineEndpoint
from fray._engine.actors import Actor
from fray._engine.calls import dispatch
from fray._engine.scope import Scope
from fray._serialization.functions import is_async_class, is_generator_function
from fray._serialization.values import callable_name
from fray._values.errors import ActorAlreadyExistsError
from fray._values.options import ActorOptions, Lifetime


class ActorsContext(TravellingContext):
    """What handles are made of here, also of an actor that another context made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._endpoints: WeakValueDictionary[str, EngineEndpoint] = WeakValueDictionary()
        self._actors: WeakValueDictionary[str, Actor] = WeakValueDictionary()  # with calls of dropped handles

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        self.engine.scope.check_open()
        packed = self._runner.pack(cls, args, kwargs)
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        detached = options.lifetime is Lifetime.DETACHED
        session = self.session
        if detached:  # its context is nobody else's
            session = Session.make(type(self), self.remote, session.namespace)
        record = ActorRecord(
            uuid4().hex,
            self.choose_worker(),
            session.packed,
            callable_name(cls),
            methods,
            is_async_class(cls),
            options,
        )
        if options.name is not None and (other := self.names.register(record)) is not None:
            if options.get_if_exists:
                return ActorHandle(self.endpoint_of(other))
            raise ActorAlreadyExistsError(options.name)
        endpoint = self._new_endpoint(record)
        caller = endpoint.actor.runner
        assert isinstance(caller, ActorCaller)
        caller.owned = not detached
        if options.name is None:
            endpoint.close_when_dropped()
        else:
            endpoint.actor.on_death.append(lambda: self.post(self.names.forget, caller.record))
        try:
            endpoint.actor.construct(packed)
        except BaseException as error:
            dispatch(endpoint.actor.die("it could not be made: {cause}", error))
            raise
        return ActorHandle(endpoint)

    def _new_endpoint(self, record: ActorRecord) -> EngineEndpoint:
        actor = self.engine.new_actor(
            record.class_name,
            record.methods,
            record.options,
            asynchronous=record.asynchronous,
            scope=Scope(_nothing) if record.detached else None,
        )
        assert isinstance(actor.runner, ActorCaller)
        actor.runner.record = record
        endpoint = self._endpoint(actor)
        return self._endpoints.setdefault(record.actor, endpoint)

    def endpoint_of(self, record: ActorRecord) -> EngineEndpoint:
        """Return what handles here of an actor of any program share."""
        known = self._endpoints.get(record.actor)
        if known is not None and not known.actor.dead:
            return known
        self._endpoints.pop(record.actor, None)
        if record.options.name is not None:
            actor = self._actors.get(record.actor)
            if (
                actor is not None and not actor.dead
            ):  # calls of a handle that was dropped are still on their way
                return self._endpoints.setdefault(record.actor, self._endpoint(actor))
        endpoint = self._new_endpoint(record)
        if record.options.name is None:
            name = endpoint.actor.runner.name  # type: ignore[attr-defined]
            self.await_later(
                self.ask(record.worker, "hold_actor", record.actor, name, session=record.session)
            )
            endpoint.close_when_dropped()
        else:
            self._actors[record.actor] = endpoint.actor
        endpoint.actor.open()
        return endpoint

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name, of any program of the namespace."""
        self.engine.scope.check_open()
        return ActorHandle(self.endpoint_of(self.names.find(name)))

    def kill(self, handle: Any, /) -> None:
        """End an actor, also one that another context made; see `JobContext.kill`."""
        if isinstance(handle, ActorHandle) and isinstance(handle._endpoint, EngineEndpoint):
            caller = handle._endpoint.actor.runner
            if isinstance(caller, ActorCaller) and not handle._endpoint.actor.dead:
                record = caller.record
                if record.options.name is not None:
                    self.names.forget(record)
                self.tell(record.worker, "kill_actor", record.actor, "it was killed", session=record.session)
        super().kill(handle)


def _nothing() -> None:
    """Calls of detached actors are counted in a scope that nobody waits for."""
