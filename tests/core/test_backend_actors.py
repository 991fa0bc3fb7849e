"""What the engine makes of an actor whose process died, over a runner that only takes note."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fray import ActorDiedError
from fray.backend import ContextCapabilities, InProcessRunner, TaskRunnerContext, dispatch
from fray.job import ActorOptions
from fray.testing.tasks import Counter


class NotedActor:
    """An actor's runner that keeps what it is given."""

    interrupts = False

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, calls: Sequence[Any]) -> None:
        self.calls.extend(calls)

    def resume(self, call: Any, more: int, parked: bool) -> None: ...

    def interrupt(self, call: Any) -> None: ...

    def end(self, *, kill: bool) -> None: ...

    def close(self, *, wait: bool) -> None: ...


class NotedRunner(InProcessRunner):
    def __init__(self) -> None:
        super().__init__()
        self.actor = NotedActor()

    def submit(self, job: Callable[[], None]) -> None:
        job()

    def close(self, *, wait: bool) -> None: ...

    def new_actor(self, actor: Any) -> Any:
        self.made = actor
        return self.actor


class NotedContext(TaskRunnerContext):
    capabilities = ContextCapabilities(actors=True, isolation=True, max_restarts=True)


def test_an_actor_that_is_killed_while_it_is_made_anew_is_not_made_anew() -> None:
    runner = NotedRunner()
    context = NotedContext(runner)
    handle = context.create_actor(Counter, options=ActorOptions(max_restarts=1))
    (construct,) = runner.actor.calls
    assert construct.claim()
    dispatch(construct.succeed())
    ref = handle.increment()
    call = runner.actor.calls[-1]
    assert call.claim()
    context._future(ref).add_done_callback(lambda _: context.kill(handle))  # in the middle of what follows
    dispatch(runner.made.process_died("was ended", [call], []))
    assert [one.kind for one in runner.actor.calls] == ["construct", "method"]
    with pytest.raises(ActorDiedError, match="killed"):
        context.get(handle.increment())
    assert list(context.engine.open_calls()) == []
    context.shutdown()
