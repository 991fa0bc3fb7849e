"""A shutdown that comes at a bad moment, on any context, is a shutdown like any other."""

import pytest

from fray import ContextClosedError, create_context
from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.runner import ProcessRunner


def test_a_context_that_is_shut_down_while_it_starts_what_starts_processes_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = create_context("process", max_workers=1)
    start = ProcessRunner._start

    def shut_down_first(self: ProcessRunner, loop: EventLoop) -> None:
        context.shutdown(wait=False)
        start(self, loop)

    monkeypatch.setattr(ProcessRunner, "_start", shut_down_first)
    with pytest.raises(ContextClosedError):
        context.run(len, "abc")
    context.shutdown()
