"""What references, handles and contexts are called on their way, and what they become where they arrive."""

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

from fray._contexts.remote.actors import ActorCaller, ActorRecord
from fray._contexts.remote.values import PackedError, StoredKey, outcome_of
from fray._contracts.remote_engine import CallFailed, Key
from fray._engine.actors import EngineEndpoint
from fray._engine.calls import dispatch
from fray._engine.refs import EngineRef, settle_error, settle_value, watch
from fray._values.errors import WorkerDiedError

if TYPE_CHECKING:
    from fray._contexts.remote.context import EngineContext


class Travelling:
    """How things of a context leave a process, and arrive in another."""

    def __init__(self: "EngineContext") -> None:  # type: ignore[misc]
        self._arrived_refs: WeakValueDictionary[Key, EngineRef[Any]] = WeakValueDictionary()
        self._published: WeakKeyDictionary[EngineRef[Any], StoredKey] = WeakKeyDictionary()
        self.submitted: WeakSet[EngineRef[Any]] = WeakSet()  # the engine will settle their keys, or has
        self._unheld: list[Future[bytes]] = []

    def describe(self: "EngineContext", thing: Any) -> Any:  # type: ignore[misc]
        """Return what makes a thing's counterpart elsewhere; None for what cannot travel."""
        if isinstance(thing, EngineRef):
            return "ref", self._exported(thing)
        if isinstance(thing, EngineEndpoint) and isinstance(thing.actor.runner, ActorCaller):
            return "actor", thing.actor.runner.record
        if isinstance(thing, Travelling):
            other: EngineContext = thing  # type: ignore[assignment]
            return "context", other.session.packed
        return None

    def arrive(self: "EngineContext", description: Any) -> Any:  # type: ignore[misc]
        """Return the counterpart here of what was described elsewhere."""
        kind, what = description
        if kind == "ref":
            return self._imported(what)
        if kind == "actor":
            record: ActorRecord = what
            return self.endpoint_of(record)
        if what == self.session.packed:
            return self
        from fray._contexts.remote.worker import context_of

        return context_of(what)

    def _exported(self: "EngineContext", thing: EngineRef[Any]) -> Key:  # type: ignore[misc]
        content = thing.content if thing.state else None
        if isinstance(content, StoredKey):
            return content.key
        key = self.key_of(thing)
        if thing not in self.submitted:
            publisher = _Publisher(self, key)
            if not watch(thing, publisher):
                publisher.notify(thing, [])
        return key

    def _imported(self: "EngineContext", key: Key) -> EngineRef[Any]:  # type: ignore[misc]
        known = self._arrived_refs.get(key)
        if known is not None:
            return known
        made: EngineRef[Any] = self.engine.promise()
        self._arrived_refs[key] = made
        self._keys[made] = key
        self.submitted.add(made)
        held = self._published[made] = self.hold(key)
        weak = ref(made)
        self.remote.when_done(key, partial(self.post, partial(_settle_imported, weak, held)))
        return made

    def keep(self: "EngineContext", failed: EngineRef[Any], held: StoredKey) -> None:  # type: ignore[misc]
        """Hold the key of a failure as long as its reference lives: others may be handed that."""
        self._published[failed] = held

    def await_later(self: "EngineContext", answer: "Future[bytes]") -> None:  # type: ignore[misc]
        """Wait for an answer before the call that runs now is over."""
        self._unheld.append(answer)

    def await_arrivals(self: "EngineContext") -> None:  # type: ignore[misc]
        """Make sure that actors whose handles arrived are kept, before who sent these may let go of them."""
        answers, self._unheld = self._unheld, []
        for answer in answers:
            answer.exception()  # a worker that is gone has nothing to keep


class _Publisher:
    """Gives a key the outcome of a reference that the engine does not settle by itself."""

    def __init__(self, context: "EngineContext", key: Key) -> None:
        self._context, self._key = context, key

    def notify(self, source: EngineRef[Any], ready: list[Any]) -> None:
        """Store the outcome; on the context's thread, for it may block."""
        if source not in self._context.submitted:  # else the engine knows its outcome itself
            self._context.post(self._store, source)

    def _store(self, source: EngineRef[Any]) -> None:
        context = self._context
        if source in context._published:
            return
        context._published[source] = held = context.hold(self._key)
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
        dispatch(settle_error(made, PackedError(error)))
    else:
        dispatch(settle_error(made, WorkerDiedError(f"its value was given up by the engine: {error!r}")))
