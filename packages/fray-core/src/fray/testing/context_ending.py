"""Timeouts, cancellation, the end."""

import concurrent.futures
import threading
from collections.abc import Callable
from functools import partial

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import create_context, get_job_context
from fray._values.errors import ContextClosedError, TaskCancelledError
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.gates import PATIENCE, until
from fray.testing.leaks import remaining, snapshot
from fray.testing.notes import Note, NoteServer
from fray.testing.tasks import Counter


class CancelContract(ContextFixtures):
    """`timeout` and `cancel`."""

    def test_a_timeout_raises_and_leaves_the_task_running(self, context: JobContext, gate: Note) -> None:
        if self.can.inline:
            gate.open()
        ref = context.create_task(tasks.hold, gate)
        if not self.can.inline:
            with pytest.raises(TimeoutError, match=r"0\.05 s"):
                context.get(ref, timeout=0.05)
            with pytest.raises(TimeoutError):
                context.get([ref], timeout=0)
            gate.open()
        assert context.get(ref, timeout=PATIENCE) == "held"

    def test_what_has_not_started_is_cancelled_and_never_runs(
        self, narrow: JobContext, gate: Note, notes: NoteServer
    ) -> None:
        if self.can.inline:
            gate.open()
        started = notes.note("started")
        running = narrow.create_task(tasks.hold, gate, started)
        started.wait()
        queued = narrow.create_task(tasks.touch, notes.note("ran"), running)
        dependent = narrow.create_task(tasks.add, queued)
        if self.can.inline:
            assert narrow.cancel(queued) is False
            self.moot("inline")
            return
        assert narrow.cancel(queued) is True
        for ref in (queued, dependent):
            with pytest.raises(TaskCancelledError) as caught:
                narrow.get(ref, timeout=PATIENCE)
            assert isinstance(caught.value, concurrent.futures.CancelledError)
        gate.open()
        assert narrow.get(running) == "held"
        assert narrow.get(narrow.run(tasks.add, 1)) == 2
        assert not notes.note("ran").read()

    def test_what_runs_is_interrupted_where_the_backend_can(
        self, context: JobContext, gate: Note, notes: NoteServer
    ) -> None:
        if self.can.inline:
            gate.open()
        started = notes.note("started")
        ref = context.create_task(tasks.hold, gate, started)
        started.wait()
        if self.can.interrupting_cancel:
            assert context.cancel(ref) is True
            with pytest.raises(TaskCancelledError):
                context.get(ref, timeout=PATIENCE)
        else:
            self.moot("interrupting_cancel")
            assert context.cancel(ref) is False
            gate.open()
            assert context.get(ref) == "held"

    def test_what_is_done_is_not_cancelled(self, context: JobContext) -> None:
        ref = context.run(tasks.add, 1)
        assert context.get(ref) == 2
        assert context.cancel(ref) is False
        assert context.get(ref) == 2


class ShutdownContract(ContextFixtures):
    """The end of a context."""

    def test_the_current_one_is_made_again_after_it_was_shut_down(
        self, spec: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FRAY_CONTEXT_SPEC", spec)
        for number in range(2):
            with get_job_context() as context:
                assert get_job_context() is context
                assert context.get(get_job_context().run(tasks.add, number)) == number + 1

    def test_leaving_the_block_waits_for_what_was_submitted(self, spec: str, notes: NoteServer) -> None:
        marks = [notes.note(f"mark{index}") for index in range(20)]
        with create_context(spec) as context:
            value = context.create_actor(Counter).increment if self.can.actors else partial(context.put, 1)
            for mark in marks:
                context.create_task(tasks.touch, mark, value())
        assert all(mark.read() for mark in marks)

    def test_leaving_the_block_waits_for_a_task_whose_taker_was_cancelled(
        self, spec: str, gate: Note, notes: NoteServer
    ) -> None:
        if self.can.inline:
            gate.open()
        with create_context(spec) as context:
            mark = notes.note("mark")
            taken = context.run(tasks.touch, mark, context.create_task(tasks.hold, gate))
            cancelled = context.cancel(context.run(repr, taken))
            assert cancelled is not self.can.inline
            del taken
            opening = threading.Timer(0.5, gate.open)
            opening.start()
        opening.join()
        assert mark.read()

    @needs("nested_tasks")
    def test_tasks_may_still_run_tasks_while_the_block_is_left(self, spec: str) -> None:
        with create_context(spec) as context:
            ref = context.run(tasks.sum_of_tasks, 20)
        assert context.get(ref) == 190

    def test_leaving_by_an_exception_cancels_what_has_not_started(
        self, narrow_spec: str, gate: Note, notes: NoteServer
    ) -> None:
        if self.can.inline:
            gate.open()
        started = notes.note("started")

        def leave() -> None:
            with create_context(narrow_spec) as context:
                context.create_task(tasks.hold, gate, started)
                started.wait()
                if not self.can.inline:
                    held = context.create_task(tasks.hold, gate)
                    context.create_task(tasks.touch, notes.note("ran"), held)
                opening.start()
                raise KeyError("on the way out")

        opening = threading.Timer(
            1.0, gate.open
        )  # long after all is cancelled, also where that takes a while
        with pytest.raises(KeyError, match="on the way out"):
            leave()
        opening.join()
        assert not notes.note("ran").read()

    def test_a_context_that_was_shut_down_takes_nothing_more(self, spec: str) -> None:
        context = create_context(spec)
        ref = context.run(tasks.add, 1)
        context.shutdown()
        context.shutdown()
        assert context.get(ref) == 2
        with pytest.raises(ContextClosedError, match="shut down"):
            context.run(tasks.add, 1)
        if self.can.actors:
            with pytest.raises(ContextClosedError):
                context.create_actor(Counter)

    def test_shutdown_without_wait_returns_at_once_and_the_work_is_done(self, spec: str, gate: Note) -> None:
        if self.can.inline:
            gate.open()
        context = create_context(spec)
        ref = context.create_task(tasks.hold, gate)
        context.shutdown(wait=False)
        gate.open()
        assert context.get(ref, timeout=PATIENCE) == "held"
        context.shutdown()

    @needs("actors")
    def test_actors_end_with_their_context(self, spec: str) -> None:
        from fray._values.errors import ActorDiedError

        with create_context(spec) as context:
            counter = context.create_actor(Counter)
            assert context.get(counter.value()) == 0
        with pytest.raises((ActorDiedError, ContextClosedError)):
            context.get(counter.value())

    def test_nothing_is_left_behind(
        self,
        spec: str,
        notes: NoteServer,
        left_on_workers: Callable[[], set[str]],
        kept_by_library: Callable[[], set[str]],
    ) -> None:
        self.use_everything(spec, notes)  # what is made once per process is there before the count
        on_workers = left_on_workers()
        before = snapshot()
        for _ in range(3):
            self.use_everything(spec, notes)
        left = remaining(before, kept=kept_by_library)
        assert not left, f"left behind: {sorted(left)}"
        until(lambda: left_on_workers() <= on_workers, "the workers hold no more than before")

    def use_everything(self, spec: str, notes: NoteServer) -> None:
        """Use a little of each thing that a context holds resources for."""
        with create_context(spec) as context:
            context.get([context.run(tasks.add, 5), context.put(b"x" * 300_000)])
            with pytest.raises(ValueError, match="x"):
                context.get(context.run(tasks.fail, "x"))
            if self.can.nested_tasks:
                context.get(context.run(tasks.nest, 5))
            if self.can.streams:
                next(context.run(tasks.endless, notes.note("diary")))
            if self.can.actors:
                counter = context.create_actor(Counter, name="all" if self.can.named_actors else None)
                context.get(counter.increment())
                next(counter.countdown())
                context.kill(context.create_actor(Counter))
