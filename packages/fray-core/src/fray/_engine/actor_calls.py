"""The calls of an actor (constructor, method, generator method), which notify the actor of their end."""

from collections.abc import Hashable
from typing import Any, Protocol

from fray._contracts.task_runner import Ready, StoredError
from fray._engine.calls import Call
from fray._engine.refs import NOTHING, VALUE
from fray._engine.streams import StreamCall


class CalledActor(Protocol):
    """What a call needs of its actor."""

    def closed(self, call: Any) -> None:
        """Forget a call that was answered."""

    def die(self, reason: str, cause: BaseException | StoredError | None = None) -> Ready:
        """End it; open calls fail."""


class ActorCall(Call):
    """A call of an actor that has one result."""

    __slots__ = ("actor", "arrived", "lane", "method")

    actor: CalledActor
    arrived: bool
    lane: Hashable
    method: str

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lane = None

    def succeed(self, value: Any = None) -> Ready:
        return self._settle(VALUE, value)

    def _settle(self, state: int, content: Any) -> Ready:
        over = self.over
        ready = super()._settle(state, content)
        if not over:
            self.actor.closed(self)
        return ready


class ConstructCall(ActorCall):
    """The call of an actor's constructor."""

    __slots__ = ()
    kind = "construct"
    method = ""

    def fail(self, error: BaseException | StoredError) -> Ready:
        """Let the actor die of it."""
        unclaimed = self.claim()
        if self.over:
            return NOTHING
        ready = list(super().fail(error))
        unrun, raised = (
            "an argument of its constructor failed: {cause!r}",
            "its constructor raised {kind}: {cause}",
        )
        ready.extend(self.actor.die(unrun if unclaimed else raised, error))
        return ready

    def succeed(self, value: Any = None) -> Ready:
        """Settle it: the actor answers calls now."""
        return super().succeed(None)

    def superseded(self) -> Ready:
        """Settle it without a word: its process died, and another constructs the actor."""
        return super().succeed(None)


class MethodCall(ActorCall):
    """A call of a method with one result."""

    __slots__ = ()
    kind = "method"


class MethodStreamCall(StreamCall):
    """A call of a generator method."""

    __slots__ = ("actor", "arrived", "lane", "method")

    kind = "method"
    actor: CalledActor
    arrived: bool
    lane: Hashable
    method: str

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lane = None

    def _finish(self, error: StoredError | None) -> Ready:
        over = self.ended
        ready = super()._finish(error)
        if not over:
            self.actor.closed(self)
        return ready
