"""A shutdown that comes at a bad moment, on any context, is a shutdown like any other."""

import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from fray import ActorDiedError, ContextClosedError, create_context
from fray.testing import tasks
from fray.testing.gates import Gate


def test_a_context_that_is_shut_down_while_it_starts_what_starts_processes_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = create_context("process", max_workers=1)
    real = resource.getrlimit

    def shut_down_first(kind: int) -> tuple[int, int]:
        """What the start asks first: how many descriptors it may have."""
        context.shutdown(wait=False)
        return real(kind)

    monkeypatch.setattr(resource, "getrlimit", shut_down_first)
    with pytest.raises(ContextClosedError):
        context.run(len, "abc")
    context.shutdown()


@pytest.mark.parametrize("spec", ["threadpool", "process"])
def test_nobody_outside_adds_to_a_context_that_waits_for_what_runs(spec: str, tmp_path: Path) -> None:
    gate, started = Gate(tmp_path / "gate"), Gate(tmp_path / "started")
    with create_context(spec) as context:
        held = context.run(tasks.hold, gate, started)
        started.wait()
        context.shutdown(wait=False)
        with pytest.raises(ContextClosedError):
            context.run(len, "abc")
        gate.open()
        assert context.get(held, timeout=60) == "held"


def test_what_runs_on_after_the_end_of_its_context_adds_nothing_to_it() -> None:
    entered, ended = threading.Event(), threading.Event()
    seen: list[Any] = []

    class Late:
        def go(self) -> None:
            entered.set()
            ended.wait(60)
            try:
                seen.append(context.run(len, "abc"))
            except ContextClosedError as error:
                seen.append(error)

    context = create_context("threadpool")
    actor: Any = context.create_actor(Late)
    call = actor.go()
    assert entered.wait(60)
    context.kill(actor)  # a thread cannot be stopped: the method goes on, and nobody counts it any more
    context.shutdown(wait=False)
    ended.set()
    with pytest.raises(ActorDiedError):
        context.get(call)
    context.shutdown()
    assert [type(one) for one in seen] == [ContextClosedError]
