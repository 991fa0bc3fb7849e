"""`EngineContext`: a whole context over a `RemoteEngine`.

Each class below has one subject, and stands on the one before: `SessionContext` (the engine, keys, requests),
`EndingContext`, `TravellingContext` (what leaves a process and arrives), `ActorsContext`, `EngineContext`.
"""

from typing import Any, ClassVar, Self, TypeVar

from fray._contexts.remote.actors_context import ActorsContext
from fray._contexts.remote.runner import EngineRunner
from fray._contexts.remote.session import Session
from fray._contexts.remote.values import StoredKey, pack
from fray._contracts.remote_engine import RemoteEngine
from fray._engine.refs import VALUE, EngineRef
from fray._values.capabilities import ContextCapabilities
from fray._values.checks import check_count

T = TypeVar("T")
_PORTABLE = ContextCapabilities(serializes=True, retries=False)


def capabilities_of(engine: Any, **more: Any) -> ContextCapabilities:
    """Return what a context over an engine can do: what follows from the primitives that it has."""
    asks, swaps, claims = (hasattr(engine, name) for name in ("ask", "swap", "claim"))
    apart = bool(engine.processes)
    return _PORTABLE.but(
        isolation=apart,
        streams=asks,
        parked_streams=asks,
        nested_tasks=hasattr(engine, "lend"),
        actors=asks,
        concurrent_actors=asks,
        async_actors=asks,
        named_actors=asks and swaps,
        detached_actors=asks and swaps,
        shared_actors=asks and swaps and apart,
        max_restarts=asks and apart,
        at_most_once=claims,
        retries=claims and apart,
        **more,
    )


class EngineContext(ActorsContext):
    """Every promise of a context, over the primitives of a remote engine.

    A backend inherits it, names its engine's class in `engine_type`, and hands one to `__init__`. The
    workers need `fray-local`, whose threads run actors and streams there. No hook needs to be overridden.

    Attributes:
        engine_type: The class of the engine; the capabilities follow from the primitives that it has.
        capabilities: What `capabilities_of` the engine says; a class that declares its own wins.

    Args:
        remote: The engine; this context closes it.
        max_workers: A hint: the engine's workers are what they are.
        num_cpus: A hint.
        memory: A hint.
        max_retries: Of every task that does not say otherwise.
        namespace: Whose named actors are shared, with all programs on the engine that say the same.
        session: Of a context in a worker; None for a program's own.
    """

    engine_type: ClassVar[Any] = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.engine_type is not None and "capabilities" not in vars(cls):
            cls.capabilities = capabilities_of(cls.engine_type)

    def __init__(
        self,
        remote: RemoteEngine,
        max_workers: int | None = None,
        *,
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
        session: Session | None = None,
    ) -> None:
        del num_cpus, memory  # hints: the engine has what it has
        if max_workers is not None:
            check_count("max_workers", max_workers, 1)
        super().__init__(
            remote, EngineRunner(), max_retries=max_retries, namespace=namespace, session=session
        )
        self.capabilities = type(self).capabilities if self.engine_type else capabilities_of(remote)

    @classmethod
    def in_worker(cls, remote: RemoteEngine, session: Session) -> Self:
        """Return a worker's own context of a session, whatever else `__init__` of the class takes."""
        made = cls.__new__(cls)
        EngineContext.__init__(made, remote, session=session)
        return made

    def put(self, obj: T, /) -> EngineRef[T]:
        """Store a value in the engine; see `JobContext.put`."""
        self.engine.scope.check_open()
        packed = pack(self, obj, "the object given to put()")
        held = self.hold(self.new_key())
        held.kept = packed.kept
        self.remote.store(held.key, packed.data)
        ref: EngineRef[T] = self.engine.put(held)
        self._keys[ref] = held.key
        return ref

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Return the value of a reference, or of each in a list; see `JobContext.get`."""
        if not isinstance(ref, list):
            return super().get(ref, timeout=timeout)
        refs = [one for one in ref if isinstance(one, EngineRef)]
        if any(one.state != VALUE for one in refs):
            self._await_all(refs, timeout)
        fetched = self.fetch_ahead({one.content for one in refs if isinstance(one.content, StoredKey)})
        try:
            return super().get(ref, timeout=timeout)
        finally:
            for held in fetched:
                held.data = None

    def cancel(self, ref: Any, /) -> bool:
        """Cancel what has not started; see `JobContext.cancel`."""
        if super().cancel(ref):
            return True
        call = ref.call if isinstance(ref, EngineRef) else None
        return call is not None and call.kind == "task" and self.cancel_submitted(call)

    def _map_window(self) -> int:
        return max(16, 4 * int(sum(self.remote.workers().values())))
