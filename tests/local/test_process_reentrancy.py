"""Calls of a context from finalizers, signal handlers and callbacks, and user code that takes its time."""

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fray import DeadlockError, create_context
from fray.job import JobContext, get_job_context
from fray.testing.deadline import deadline
from fray.testing.gates import Gate
from fray.testing.installation import forget_plugins
from fray.testing.interrupting import interrupted, struck
from fray.testing.tasks import Counter


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


class CallsWhenCollected:
    """Runs a task when it is collected, wherever that happens."""

    def __init__(self, context: JobContext, seen: list[Any]) -> None:
        self.me, self.context, self.seen = self, context, seen

    def __del__(self) -> None:
        ref = self.context.run(abs, -1)
        try:
            self.seen.append(self.context.get(ref))
        except RuntimeError as error:
            self.seen.append(error)


class TestFinalizers:
    @pytest.mark.timeout(60)
    def test_one_that_runs_a_task_and_gets_it_hangs_nobody(self, context: JobContext) -> None:
        context.get(context.run(abs, -1))
        seen: list[Any] = []
        before = gc.get_threshold()
        gc.set_threshold(20, 2, 2)  # so that it runs in the middle of everything
        try:
            for _ in range(8):
                for _ in range(3):
                    CallsWhenCollected(context, seen)
                refs = [context.run(abs, -index) for index in range(20)]
                assert context.get(refs) == list(range(20))
        finally:
            gc.set_threshold(*before)
        gc.collect()
        assert len(seen) == 24
        assert all(one == 1 or isinstance(one, RuntimeError) for one in seen)

    def test_one_in_a_worker_hangs_nobody(self, context: JobContext) -> None:
        def work() -> int:
            mine = get_job_context()
            seen: list[Any] = []
            gc.set_threshold(20, 2, 2)
            for _ in range(10):
                CallsWhenCollected(mine, seen)
                mine.get([mine.run(abs, -index) for index in range(5)])
            gc.set_threshold(700, 10, 10)
            gc.collect()
            return len(seen)

        assert context.get(context.run(work), timeout=60) == 10


class TestSignalHandlers:
    @pytest.mark.timeout(60)
    def test_one_that_runs_a_task_and_gets_it_hangs_nobody(self, context: JobContext) -> None:
        context.get(context.run(abs, -1))  # what this imports is the interpreter's to guard
        seen: list[Any] = []
        handled, stop = threading.Event(), threading.Event()

        def handle(number: int, frame: Any) -> None:
            try:
                seen.append(context.get(context.run(abs, -7)))
            except RuntimeError as error:
                seen.append(error)
            handled.set()

        def interrupt() -> None:
            while not stop.wait(0.005):
                handled.clear()
                os.kill(os.getpid(), signal.SIGUSR2)
                handled.wait(30)

        before = signal.signal(signal.SIGUSR2, handle)
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        try:
            end = time.monotonic() + 1.5
            while time.monotonic() < end or seen.count(7) <= 5:
                assert context.get([context.run(abs, -index) for index in range(10)]) == list(range(10))
        finally:
            stop.set()
            interrupter.join()
            signal.signal(signal.SIGUSR2, before)
        assert all(one == 7 or isinstance(one, RuntimeError) for one in seen)


class SlowToLoad:
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_slowly, (self.gate,)


def _load_slowly(gate: Gate) -> SlowToLoad:
    gate.wait()
    return SlowToLoad(gate)


class TestSlowUserCode:
    @pytest.mark.timeout(60)
    def test_a_slow_result_delays_nobody_else(self, context: JobContext, tmp_path: Path) -> None:
        executor, gate = context.as_executor(), Gate(tmp_path / "gate")
        slow = executor.submit(SlowToLoad, gate)
        error = context.run(_raise_slowly, gate, os.getpid())
        context.wait([error])
        assert [executor.submit(abs, -index).result() for index in range(20)] == list(range(20))
        assert context.get([context.run(abs, -index) for index in range(20)]) == list(range(20))
        assert not slow.done()
        gate.open()
        assert isinstance(slow.result(), SlowToLoad)

    @pytest.mark.timeout(120)
    def test_a_result_right_behind_a_slow_one_arrives(self, context: JobContext, tmp_path: Path) -> None:
        executor = context.as_executor()
        for number in range(8):
            start, load = Gate(tmp_path / f"start-{number}"), Gate(tmp_path / f"load-{number}")
            slow = executor.submit(_when_open, start, SlowToLoad, load)
            quick = executor.submit(_when_open, start, abs, -1)
            start.open()  # both end within milliseconds
            try:
                assert quick.result(timeout=20) == 1
            finally:
                load.open()
            assert isinstance(slow.result(timeout=20), SlowToLoad)

    def test_a_callback_may_use_the_context(self, context: JobContext) -> None:
        found: list[int] = []
        done = threading.Event()

        def call_back(future: Any) -> None:
            found.append(context.get(context.run(abs, -future.result())))
            done.set()

        context.as_executor().submit(abs, -3).add_done_callback(call_back)
        assert done.wait(60)
        assert found == [3]


def _when_open(gate: Gate, fn: Callable[..., Any], *args: Any) -> Any:
    gate.wait()
    return fn(*args)


class SlowError(Exception):
    """Slow to load in one process: that of its test."""

    def __init__(self, gate: Gate, pid: int) -> None:
        self.gate, self.pid = gate, pid

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_slow_error, (self.gate, self.pid)


def _load_slow_error(gate: Gate, pid: int) -> SlowError:
    if os.getpid() == pid:
        gate.wait()
    return SlowError(gate, pid)


def _raise_slowly(gate: Gate, pid: int) -> None:
    raise SlowError(gate, pid)


class Clock:
    """An async actor with a background task, a lock and a stream."""

    def __init__(self) -> None:
        self.ticks, self.lock, self.inside = 0, asyncio.Lock(), 0
        self.background = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.005)
            self.ticks += 1

    async def wait_for_ticks(self, count: int) -> int:
        while self.ticks < count:
            await asyncio.sleep(0.005)
        return os.getpid()

    async def alone(self) -> int:
        async with self.lock:
            self.inside += 1
            await asyncio.sleep(0.01)
            found = self.inside
            self.inside -= 1
            return found

    async def count(self, items: int) -> AsyncIterator[int]:
        for index in range(items):
            await asyncio.sleep(0)
            yield index

    async def sleep_long(self) -> None:
        await asyncio.sleep(600)


class TestAsyncActors:
    def test_background_tasks_and_locks_live_from_call_to_call(self, context: JobContext) -> None:
        clock = context.create_actor(Clock)
        one, other = context.get([clock.wait_for_ticks(3), clock.wait_for_ticks(10)], timeout=60)
        assert one == other
        assert context.get([clock.alone() for _ in range(10)], timeout=60) == [1] * 10

    def test_async_generators_stream(self, context: JobContext) -> None:
        clock = context.create_actor(Clock)
        first, second = clock.count(40), clock.count(40)
        pairs = [(context.get(one), context.get(two)) for one, two in zip(first, second, strict=True)]
        assert pairs == [(index, index) for index in range(40)]

    def test_a_call_can_be_cancelled_and_the_others_go_on(self, context: JobContext) -> None:
        clock = context.create_actor(Clock)
        asleep = clock.sleep_long()
        context.get(clock.wait_for_ticks(1))
        assert context.cancel(asleep)
        assert context.get(clock.wait_for_ticks(2), timeout=60)


def make_actors_while_others_are_made(module: str) -> None:
    """In a worker: make an actor, and another from a finalizer that comes between two lines of that."""
    context = get_job_context()
    actors: list[Any] = []
    refs: list[Any] = []
    errors: list[BaseException] = []

    def make() -> None:
        actors.append(context.create_actor(Counter, 2))
        refs.append(actors[-1].value())

    class Dropped:
        def __del__(self) -> None:
            try:
                make()
            except BaseException as error:
                errors.append(error)

    lines = interrupted(make, Dropped, 0, module)
    for line in range(1, lines, max(1, lines // 12)):
        interrupted(make, Dropped, line, module)
        assert not errors
        assert context.get(refs, timeout=60) == [2] * len(refs)
        refs.clear()
        while actors:
            context.kill(actors.pop())


class TestInterruptions:
    """One call comes between two lines of another, on its thread, as from a finalizer or a signal handler."""

    @pytest.mark.parametrize("module", ["actor_directory", "actor_registry"])
    def test_actors_that_others_share_may_be_made_while_one_is_made(self, module: str) -> None:
        with create_context("process", namespace=f"interrupted-{module}-{os.getpid()}") as context:
            numbers = itertools.count()
            refs: list[Any] = []
            actors: list[Any] = []

            def make() -> None:
                actor = context.create_actor(set, name=f"set-{next(numbers)}")
                refs.append(actor.copy())
                actors.append(actor)
                context.kill(context.create_actor(set, name="same", get_if_exists=True))

            lines = interrupted(make, make, 0, module)
            for line in range(1, lines, max(1, lines // 12)):
                interrupted(make, make, line, module)
                assert context.get(refs, timeout=60) == [set()] * len(refs)
                refs.clear()
                while actors:
                    context.kill(actors.pop())

    @pytest.mark.parametrize("module", ["worker.context", "worker.outbox"])
    def test_a_finalizer_in_a_task_makes_an_actor_while_one_is_made(self, module: str) -> None:
        with create_context("process", max_workers=1) as context:
            context.get(context.run(make_actors_while_others_are_made, module), timeout=100)

    def test_of_two_that_make_one_shared_actor_at_the_same_time_one_makes_it(self) -> None:
        namespace = f"raced-{os.getpid()}"
        with (
            create_context("process", namespace=namespace) as one,
            create_context("process", namespace=namespace) as other,
        ):
            made: list[Any] = []
            names = (f"raced-{number}" for number in itertools.count())

            def race(line: int) -> int:
                name = next(names)

                def make(context: JobContext) -> None:
                    made.append((context, context.create_actor(list, name=name, get_if_exists=True)))

                return interrupted(lambda: make(one), lambda: make(other), line, "actor_registry")

            lines = race(1)
            for line in range(1, lines, max(1, lines // 10)):
                made.clear()
                race(line)
                for context, actor in made:
                    context.get(actor.append(1), timeout=60)
                assert [context.get(actor.copy(), timeout=60) for context, actor in made] == [
                    [1] * len(made)
                ] * 2
                one.kill(made[0][1])

    def test_the_current_context_may_be_asked_for_while_plugins_are_looked_up(self) -> None:
        refs: list[Any] = []

        def ask() -> None:
            forget_plugins()
            refs.append(create_context("sync").run(abs, -1))

        plugins = forget_plugins.__module__
        lines = interrupted(ask, ask, 0, plugins)
        for line in range(1, lines, max(1, lines // 40)):
            interrupted(ask, ask, line, plugins)
        assert {ref.content for ref in refs} == {1}

    @pytest.mark.parametrize("line", range(2, 26, 3))
    def test_the_first_call_of_all_may_be_interrupted_by_another(self, line: int) -> None:
        with create_context("process", max_workers=1) as context:
            refs: list[Any] = []

            def run() -> None:
                refs.append(context.run(abs, -1))

            interrupted(run, run, line, "owner.runner")
            assert context.get(refs, timeout=60) == [1, 1]

    @pytest.mark.timeout(60)
    def test_the_first_call_of_a_thread_may_be_interrupted_by_one_of_another_context(self) -> None:
        with (
            create_context("process", max_workers=1) as context,
            create_context("process", max_workers=1) as other,
        ):

            def at(line: int) -> int:
                refs: list[Any] = []
                lines: list[int] = []

                def run() -> None:
                    visit = lambda: refs.append(other.run(abs, -2))  # noqa: E731
                    lines.append(
                        interrupted(lambda: refs.append(context.run(abs, -1)), visit, line, "locking")
                    )

                thread = threading.Thread(target=run, daemon=True)
                thread.start()
                thread.join(20)
                assert not thread.is_alive()
                assert sorted(one.get(ref) for one, ref in zip((other, context), refs, strict=True)) == [1, 2]
                return lines[0]

            for line in range(1, at(1)):
                at(line)


class TestCtrlC:
    """It comes at each point of a call at which the interpreter runs signal handlers."""

    @pytest.mark.parametrize("module", ["serial_queue", "locking"])
    def test_it_ends_the_block_wherever_it_comes(self, module: str) -> None:
        def leave(point: int) -> int:
            with create_context("process", max_workers=1) as context:
                context.get(context.run(abs, -1))
                return struck(lambda: context.run(abs, -1), point, module)

        points = leave(0)
        raised = 0
        for point in range(1, points + 1):
            with deadline(30):
                try:
                    leave(point)  # where another thread was quicker, it comes to fewer points
                except KeyboardInterrupt:
                    raised += 1
        assert raised

    @pytest.mark.parametrize("spec", ["sync", "threadpool", "process"])
    def test_an_actor_answers_its_later_calls(self, spec: str) -> None:
        def call(point: int) -> int:
            with create_context(spec) as context:
                counter = context.create_actor(Counter)
                context.get(counter.value())
                points = 0
                with contextlib.suppress(KeyboardInterrupt):
                    points = struck(counter.increment, point, "_engine.actors")
                assert context.get(counter.value(), timeout=20) in (0, 1)
                context.abort()  # type: ignore[attr-defined]  # nobody waits for the call that was interrupted
                return points

        points = call(0)
        assert points
        for point in range(1, points + 1):
            with deadline(30):
                call(point)

    def test_a_pool_runs_its_later_tasks(self) -> None:
        with create_context("threadpool", max_workers=1) as context:
            context.get(context.run(abs, -1))
            points = struck(lambda: context.run(abs, -1), 0, "_runners.thread")
            assert points
            for point in range(1, points + 1):
                with contextlib.suppress(KeyboardInterrupt):
                    struck(lambda: context.run(abs, -1), point, "_runners.thread")
                assert context.get(context.run(abs, -2), timeout=20) == 2

    def test_the_process_context_runs_its_later_tasks(self) -> None:
        with create_context("process", max_workers=1) as context:

            def run() -> None:
                context.run(abs, -1)

            def strike() -> None:
                signal.raise_signal(signal.SIGINT)

            context.get(context.run(abs, -1))
            lines = interrupted(run, run, 0, "_process.owner")
            assert lines
            for line in range(1, lines + 1):
                with contextlib.suppress(KeyboardInterrupt):
                    interrupted(run, strike, line, "_process.owner")
                assert context.get(context.run(abs, -2), timeout=20) == 2


class TestTheEndOfAProgram:
    @pytest.mark.parametrize("ending", ["raise ValueError('crash')", "sys.exit(3)"])
    def test_one_that_fails_waits_for_nothing(self, ending: str) -> None:
        assert _run_program(f"context.run(time.sleep, 600); {ending}") in (1, 3)

    def test_one_that_ends_normally_waits_for_its_tasks(self, tmp_path: Any) -> None:
        assert _run_program(f"context.run(late, {os.fspath(tmp_path / 'made')!r})") == 0
        assert (tmp_path / "made").exists()


def _run_program(last: str) -> int:
    program = f"""
        import pathlib, sys, time
        from fray import create_context
        def late(path):
            time.sleep(0.5)
            pathlib.Path(path).touch()
        context = create_context("process", max_workers=1)
        context.get(context.run(abs, -1))
        {last}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    return done.returncode


class TestFunctions:
    def test_one_whose_globals_changed_is_sent_anew(self, run_script: Callable[..., str]) -> None:
        out = run_script(
            """
            from fray import create_context

            FACTOR, TABLE = 2, {"a": 1}

            def helper(number):
                return number * FACTOR

            def look(number):
                return helper(number), TABLE["a"]

            if __name__ == "__main__":
                with create_context("process", max_workers=1) as context:
                    print(context.get(context.run(look, 3)))
                    FACTOR, TABLE["a"] = 5, 7
                    print(context.get(context.run(look, 3)))
                    def helper(number):
                        return -number
                    print(context.get(context.run(look, 3)))
            """
        )
        assert out == "(6, 1)\n(15, 7)\n(-3, 7)\n"


def test_a_finalizer_in_the_thread_that_reads_results_is_refused_to_wait_from_its_first_line_on() -> None:
    contexts: list[JobContext] = []
    refused: list[object] = []
    visiting = threading.local()

    def visit(frame: FrameType, event: str, arg: object) -> Any:
        """As the collector would: between two lines of that thread."""
        # No `current_thread`: it would count a thread that has just begun twice.
        readers = [thread.ident for thread in threading.enumerate() if thread.name == "fray-event-loop"]
        reads = threading.get_ident() in readers
        if reads and event == "line" and contexts and len(refused) < 5 and not hasattr(visiting, "now"):
            visiting.now = True
            ref = contexts[0].run(abs, -1)
            with pytest.raises(DeadlockError) as error:
                contexts[0].get(ref, timeout=20)
            refused.append(error)
            del visiting.now
        return visit

    threading.settrace(visit)
    try:
        with create_context("process", max_workers=1) as context:
            contexts.append(context)
            assert context.get(context.run(abs, -2), timeout=60) == 2
            contexts.clear()
    finally:
        threading.settrace(None)
    assert len(refused) == 5


# In each worker: as the collector would, between two lines of the thread that reads.
VISITS_THE_READER = """
import os, threading
context, refused = None, []
visiting = threading.local()

def visit(frame, event, argument):
    if event == "line" and context is not None and len(refused) < 5 and not hasattr(visiting, "now"):
        visiting.now = True
        try:
            context.get(context.run(abs, -1), timeout=20)
        except Exception as error:
            refused.append(str(error))
        del visiting.now
    return visit

os.register_at_fork(after_in_child=lambda: threading.settrace(visit))
"""


def test_a_finalizer_in_the_thread_of_a_worker_that_reads_answers_is_refused_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "visits.py").write_text(VISITS_THE_READER)
    (tmp_path / "sitecustomize.py").write_text("import visits")
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))

    def work() -> tuple[int, list[str]]:
        import visits  # type: ignore[import-not-found]

        visits.context = get_job_context()
        answer = visits.context.get(visits.context.run(abs, -2), timeout=60)
        visits.context = None
        return answer, visits.refused

    with create_context("process", max_workers=1) as context:
        answer, refused = context.get(context.run(work), timeout=100)
    assert answer == 2
    assert refused
    assert all("would wait for ever" in message for message in refused)
