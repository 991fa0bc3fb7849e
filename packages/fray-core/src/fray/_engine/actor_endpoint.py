"""What the handles of one actor share, where the actor's calls go through an engine of ours."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from fray._contracts.actor_handle import ActorEndpoint
from fray._contracts.task_runner import PackedCall
from fray._engine.actors import Actor
from fray._engine.identity import reduce_by_identity
from fray._engine.streams import EngineStream


class EngineEndpoint(ActorEndpoint):
    """What handles of one actor share; when the last is gone, an actor without a name ends.

    Args:
        pack: Packs the arguments of a method.
    """

    def __init__(self, actor: Actor, pack: Callable[..., PackedCall]) -> None:
        self.actor, self._pack = actor, pack

    @property
    def methods(self) -> Mapping[str, bool]:
        return self.actor.methods

    @property
    def label(self) -> str:
        return self.actor.label

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = self.actor.call(method, self._pack(None, args, kwargs))
        if self.actor.methods[method]:
            self._cancel_when_dropped(answer)
        return answer

    def _cancel_when_dropped(self, stream: EngineStream[Any]) -> None:
        """Let the generator be closed when nobody can read its items any more: the actor holds its call."""
        weakref.finalize(stream, _cancel, stream.call).atexit = False

    def close_when_dropped(self) -> None:
        """Let the actor end, after the calls that it has, when nobody can call it any more."""
        weakref.finalize(self, self.actor.retire).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)


def _cancel(call: Any) -> None:
    if not call.scope.foreign:
        call.cancel()
