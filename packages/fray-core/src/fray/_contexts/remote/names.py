"""Where actors live, and their names: registered in the engine for all programs of a namespace."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fray._values.errors import ActorNotFoundError
from fray._values.options import ActorOptions, Lifetime


class ActorRecord(NamedTuple):
    """What others need to call an actor: what a name is registered with, and a handle travels as."""

    actor: str
    worker: str
    session: bytes
    class_name: str
    methods: Mapping[str, bool]
    asynchronous: bool
    options: ActorOptions

    @property
    def detached(self) -> bool:
        """Whether it outlives its creator."""
        return self.options.lifetime is Lifetime.DETACHED


class ActorNames:
    """The names of one namespace. Every method asks the engine, and blocks.

    Args:
        engine: Has `swap`.
        lives: Returns whether the actor of a record lives.
    """

    def __init__(self, engine: Any, namespace: str, lives: Callable[[ActorRecord], bool]) -> None:
        self._engine, self._namespace, self._lives = engine, namespace, lives

    def _name(self, record: ActorRecord) -> str:
        return self._key(str(record.options.name))

    def _key(self, name: str) -> str:
        return f"fray/actor/{self._namespace}/{name}"

    def register(self, record: ActorRecord) -> ActorRecord | None:
        """Register a record under its name, unless a living actor has it: return that one's."""
        name, packed, expected = self._name(record), pickle.dumps(record), None
        while True:
            found = self._engine.swap(name, expected, packed)
            if found == expected:
                return None
            if found is not None:
                other: ActorRecord = pickle.loads(found)
                if self._lives(other):
                    return other
            expected = found

    def forget(self, record: ActorRecord) -> None:
        """Free a name, where it is still this actor's."""
        if record.options.name is not None:
            self._engine.swap(self._name(record), pickle.dumps(record), None)

    def move(self, before: ActorRecord, after: ActorRecord) -> None:
        """Record where an actor lives now."""
        if before.options.name is not None:
            self._engine.swap(self._name(before), pickle.dumps(before), pickle.dumps(after))

    def find(self, name: str) -> ActorRecord:
        """Return the record of a living actor.

        Raises:
            ActorNotFoundError: There is none.
        """
        found = self._engine.swap(self._key(name), None, None)
        if found is not None:
            record: ActorRecord = pickle.loads(found)
            if self._lives(record):
                return record
        raise ActorNotFoundError(name)
