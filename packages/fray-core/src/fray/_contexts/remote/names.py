"""Names of actors, registered in the engine for all programs of a namespace."""

import pickle
from typing import TYPE_CHECKING

from fray._contexts.remote.actors import ActorRecord
from fray._values.errors import ActorNotFoundError

if TYPE_CHECKING:
    from fray._contexts.remote.context import EngineContext


class ActorNames:
    """The names of one namespace. Every method asks the engine, and blocks."""

    def __init__(self, context: "EngineContext") -> None:
        self._context = context

    def _name(self, record: ActorRecord) -> str:
        return self._key(str(record.options.name))

    def _key(self, name: str) -> str:
        return f"fray/actor/{self._context.session.namespace}/{name}"

    def register(self, record: ActorRecord) -> ActorRecord | None:
        """Register a record under its name, unless a living actor has it: return that one's."""
        name, packed, expected = self._name(record), pickle.dumps(record), None
        while True:
            found = self._context.remote.swap(name, expected, packed)  # type: ignore[attr-defined]
            if found == expected:
                return None
            if found is not None:
                other: ActorRecord = pickle.loads(found)
                if self._context.lives(other):
                    return other
            expected = found

    def forget(self, record: ActorRecord) -> None:
        """Free a name, where it is still this actor's."""
        if record.options.name is not None:
            self._context.remote.swap(self._name(record), pickle.dumps(record), None)  # type: ignore[attr-defined]

    def move(self, before: ActorRecord, after: ActorRecord) -> None:
        """Say where an actor lives now."""
        if before.options.name is not None:
            self._context.remote.swap(self._name(before), pickle.dumps(before), pickle.dumps(after))  # type: ignore[attr-defined]

    def find(self, name: str) -> ActorRecord:
        """Return the record of a living actor.

        Raises:
            ActorNotFoundError: There is none.
        """
        found = self._context.remote.swap(self._key(name), None, None)  # type: ignore[attr-defined]
        if found is not None:
            record: ActorRecord = pickle.loads(found)
            if self._context.lives(record):
                return record
        raise ActorNotFoundError(name)
