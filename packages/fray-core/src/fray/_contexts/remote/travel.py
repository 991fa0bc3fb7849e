"""What references, handles and contexts are called on their way, and what they become where they arrive."""

from functools import partial
from typing import Any
from weakref import WeakValueDictionary, ref

from fray._contexts.remote.actors import ActorCaller
from fray._contexts.remote.ending import EndingContext
from fray._contexts.remote.hosts import context_of
from fray._contexts.remote.names import ActorRecord
from fray._contexts.remote.session import SessionContext
from fray._contexts.remote.values import SerializedError, StoredKey, outcome_of
from fray._contracts.remote_engine import CallFailed, Key
from fray._engine.actor_endpoint import EngineEndpoint
from fray._engine.calls import dispatch
from fray._engine.refs import EngineRef, settle_error, settle_value, watch
from fray._values.errors import WorkerDiedError


class TravellingContext(EndingContext):
    """How things of a context leave a process, and arrive in another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arrived_refs: WeakValueDictionary[Key, EngineRef[Any]] = WeakValueDictionary()

    def endpoint_of(self, record: ActorRecord) -> EngineEndpoint:
        """Return what handles here of an actor of any program share."""
        raise NotImplementedError

    def describe(self, thing: Any) -> Any:
        """Return what makes a thing's counterpart elsewhere; None for what cannot travel."""
        if isinstance(thing, EngineRef):
            return "ref", self._exported(thing)
        if isinstance(thing, EngineEndpoint) and isinstance(thing.actor.runner, ActorCaller):
            return "actor", thing.actor.runner.record
        if isinstance(thing, SessionContext):
            return "context", thing.session.packed
        return None

    def arrive(self, description: Any) -> Any:
        """Return the counterpart here of what was described elsewhere."""
        kind, what = description
        if kind == "ref":
            return self._imported(what)
        if kind == "actor":
            record: ActorRecord = what
            return self.endpoint_of(record)
        if what == self.session.packed:
            return self
        return context_of(what)

    def _exported(self, thing: EngineRef[Any]) -> Key:
        content = thing.content if thing.state else None
        if isinstance(content, StoredKey):
            return content.key
        key = self.key_of(thing)
        if thing not in self.submitted:
            publisher = _Publisher(self, key)
            if not watch(thing, publisher):
                publisher.notify(thing, [])
        return key

    def _imported(self, key: Key) -> EngineRef[Any]:
        known = self._arrived_refs.get(key)
        if known is not None:
            return known
        made: EngineRef[Any] = self.engine.promise()
        self._arrived_refs[key] = made
        self._keys[made] = key
        self.submitted.add(made)
        held = self.hold(key)
        self.keep(made, held)
        weak = ref(made)
        self.remote.when_done(key, partial(self.post, partial(_settle_imported, weak, held)))
        return made


class _Publisher:
    """Gives a key the outcome of a reference that the engine does not settle by itself."""

    def __init__(self, context: TravellingContext, key: Key) -> None:
        self._context, self._key = context, key

    def notify(self, source: EngineRef[Any], ready: list[Any]) -> None:
        """Store the outcome; on the context's thread, for it may block."""
        if source not in self._context.submitted:  # else the engine knows its outcome itself
            self._context.post(self._store, source)

    def _store(self, source: EngineRef[Any]) -> None:
        context = self._context
        if context.is_kept(source):
            return
        held = context.hold(self._key)
        context.keep(source, held)
        outcome = outcome_of(context, source)
        if isinstance(outcome, CallFailed):
            context.remote.store(self._key, outcome)
        else:
            held.kept = outcome.kept
            context.remote.store(self._key, outcome.data)


def _settle_imported(weak: "ref[EngineRef[Any]]", held: StoredKey, error: BaseException | None) -> None:
    made = weak()
    if made is None:
        return
    if error is None:
        dispatch(settle_value(made, held))
    elif isinstance(error, CallFailed):
        dispatch(settle_error(made, SerializedError(error)))
    else:
        dispatch(settle_error(made, WorkerDiedError(f"its value was given up by the engine: {error!r}")))
