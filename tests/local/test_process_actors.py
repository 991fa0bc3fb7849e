"""Actors in processes: their death, and how processes that know nothing of each other share them."""

import atexit
import contextlib
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorNotFoundError,
    ActorOptions,
    ContextClosedError,
    JobContext,
    TaskCancelledError,
    UnsupportedError,
    WorkerDiedError,
    create_context,
    get_job_context,
)
from fray.cluster import Entrypoint, JobRequest, create_cluster
from fray.testing.command_line import main
from fray.testing.deadline import deadline
from fray.testing.gates import Gate, until
from fray.testing.interrupting import interrupted
from fray.testing.tasks import Counter


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


def _make_at_once(actors: int, rounds: int) -> list[list[int]]:
    """Make actors in threads of one task, all of a round at the same time; return what each says it is."""
    context, seen = get_job_context(), []
    for _ in range(rounds):
        made: dict[int, Any] = {}
        start = threading.Barrier(actors)

        def make(number: int, made: dict[int, Any] = made, start: threading.Barrier = start) -> None:
            start.wait()
            made[number] = context.create_actor(Counter, number)

        threads = [threading.Thread(target=make, args=[number]) for number in range(actors)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.append(context.get([made[number].value() for number in range(actors)], timeout=60))
    return seen


def pid_of(context: JobContext, mortal: Any) -> int | None:
    try:
        return int(context.get(mortal.pid(), timeout=60))
    except ActorDiedError:
        return None


def turn_of(context: JobContext, ref: Any) -> Any:
    try:
        return context.get(ref, timeout=30)
    except ActorDiedError:
        return None


def is_dead(context: JobContext, actor: Any) -> bool:
    try:
        context.get(actor.ready())
    except (ActorDiedError, ContextClosedError):
        return True
    return False


def has_ended(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


class Mortal:
    def pid(self) -> int:
        return os.getpid()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def count(self) -> Iterator[int]:
        yield from range(100)

    def hold(self, started: Gate, gate: Gate) -> None:
        started.open()
        gate.wait()

    def fork(self) -> int:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, b"up")  # what it must not hold it has closed by now
            time.sleep(600)
            os._exit(0)
        os.read(reader, 2)
        return pid


class Recalling(Mortal):
    """Says when a call ran: the process by the time of its start, and which call of it that was."""

    def __init__(self) -> None:
        self._started, self._calls = time.monotonic(), 0

    def seen(self) -> tuple[float, int]:
        self._calls += 1
        return self._started, self._calls


class AsyncMortal:
    async def die(self, ran: Path) -> None:
        with ran.open("a") as file:
            file.write("once ")
        os.kill(os.getpid(), signal.SIGKILL)

    async def ready(self) -> None: ...


class Refusing:
    def __init__(self, started: Gate, gate: Gate) -> None:
        started.open()
        gate.wait()
        raise ValueError("no")


class Leaving:
    """Notes that its process ends as a program does."""

    def __init__(self, left: Path) -> None:
        atexit.register(left.touch)

    def ready(self) -> None: ...

    def hold(self, started: Gate, gate: Gate) -> str:
        started.open()
        gate.wait()
        return "held"


class Writer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wait(self, started: Gate, gate: Gate) -> None:
        started.open()
        gate.wait()
        # The answer comes after all that was said to this process before.
        get_job_context().get(get_job_context().run(abs, -1))

    def write(self, name: str) -> None:
        (self.folder / name).touch()

    def count(self) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            self.write("closed")


def run_elsewhere(code: str) -> str:
    """Run Python in another process that has the same state; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestDeath:
    def test_an_actor_whose_process_was_killed_is_dead_and_says_why(self, context: JobContext) -> None:
        mortal = context.create_actor(Mortal, name="mortal")
        calls = [mortal.die(), mortal.pid()]
        for call in calls:
            with pytest.raises(ActorDiedError, match="SIGKILL"):
                context.get(call)
        with pytest.raises(ActorDiedError):
            context.get(mortal.pid())
        again = context.create_actor(Mortal, name="mortal")
        assert context.get(again.pid()) > 0

    def test_it_is_made_anew_where_asked(self, context: JobContext) -> None:
        mortal = context.create_actor(Mortal, options=ActorOptions(max_restarts=1))
        first = context.get(mortal.pid())
        dying, after = mortal.die(), mortal.pid()
        with pytest.raises(ActorDiedError, match="started again"):
            context.get(dying)
        assert context.get(after) != first
        with pytest.raises(ActorDiedError):
            context.get(mortal.die())
        with pytest.raises(ActorDiedError):
            context.get(mortal.pid())

    def test_it_is_made_anew_where_its_constructor_was_killed(
        self, context: JobContext, tmp_path: Path
    ) -> None:
        class Late(Mortal):
            def __init__(self) -> None:
                with (tmp_path / "tries").open("ab") as file:
                    file.write(b".")
                if (tmp_path / "tries").stat().st_size < 3:
                    self.die()

        with create_context("process") as other:
            late = other.create_actor(Late, options=ActorOptions(max_restarts=2))
            assert other.get(late.pid()) > 0
        # Leaving the block has waited for everything, the two constructors that were killed included.

    def test_one_that_was_dropped_is_not_made_anew(self, tmp_path: Path) -> None:
        class Made(Mortal):
            def __init__(self) -> None:
                with (tmp_path / "made").open("ab") as file:
                    file.write(b".")

        with deadline(60), create_context("process") as context:
            pid = context.get(context.create_actor(Made, options=ActorOptions(max_restarts=1)).pid())
            until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends")
            dying = context.create_actor(Made, options=ActorOptions(max_restarts=1)).die()
            with pytest.raises(ActorDiedError):
                context.get(dying)
            # One whose handle was dropped after a call that is still to be answered.
            made = context.create_actor(Made, options=ActorOptions(max_restarts=1))
            calls = [made.die(), made.pid()]
            del made
            with pytest.raises(ActorDiedError, match="started again"):
                context.get(calls[0])
            assert context.get(calls[1]) > 0
        assert (tmp_path / "made").read_bytes() == b"...."

    @pytest.mark.parametrize("module", ["_engine.actors", "owner.actor_process", "owner.worker_connection"])
    def test_no_call_is_lost_or_overtaken_where_its_process_dies_at_any_step_of_it(self, module: str) -> None:
        with deadline(60), create_context("process", max_workers=1) as context:
            actor = context.create_actor(Recalling, options=ActorOptions(max_restarts=1000))
            refs: list[Any] = []

            def call() -> None:
                refs.append(actor.seen())

            def die() -> None:
                """End the process, and let the loop learn of it, unless this thread holds what that takes."""
                os.kill(pid, signal.SIGKILL)
                until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends")
                after = threading.Thread(target=lambda: context.get(context.run(abs, -1)), daemon=True)
                after.start()
                after.join(0.2)

            pid = context.get(actor.pid())
            for line in range(1, interrupted(call, call, 0, module) + 1):
                pid = until(lambda: pid_of(context, actor), "it is there again")
                refs.clear()
                interrupted(call, die, line, module)
                call()
                turns = [turn for turn in (turn_of(context, ref) for ref in refs) if turn is not None]
                assert turns == sorted(turns)

    def test_an_async_method_that_ran_does_not_run_again(self, context: JobContext, tmp_path: Path) -> None:
        options = ActorOptions(max_concurrency=1, max_restarts=2)
        actor = context.create_actor(AsyncMortal, options=options)
        with pytest.raises(ActorDiedError, match=r"while it ran die\(\)"):
            context.get(actor.die(tmp_path / "ran"), timeout=30)
        assert context.get(actor.ready(), timeout=30) is None
        assert (tmp_path / "ran").read_text() == "once "

    def test_a_stream_of_one_that_is_made_anew_does_not_begin_again(self, context: JobContext) -> None:
        mortal = context.create_actor(Mortal, options=ActorOptions(max_restarts=1))
        pid, first, second = context.get(mortal.pid()), mortal.count(), mortal.count()
        seen = [context.get(next(second))]
        for _ in range(17):  # the last of them comes after it was resumed
            context.get(next(first))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorDiedError):
            seen.extend(context.get(item, timeout=30) for item in second)
        assert seen == list(range(len(seen)))

    def test_what_waited_behind_a_call_of_another_program_runs_in_the_next_process(
        self, tmp_path: Path
    ) -> None:
        with (
            create_context("process", max_workers=1, namespace="team") as maker,
            create_context("process", max_workers=1, namespace="team") as other,
        ):
            mortal = maker.create_actor(Mortal, name="mortal", options=ActorOptions(max_restarts=1))
            pid, found = maker.get(mortal.pid()), other.get_actor("mortal")
            other.get([found.pid() for _ in range(9)])
            started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
            held = found.hold(started, gate)
            started.wait()
            waits = mortal.pid()
            os.kill(pid, signal.SIGKILL)
            assert maker.get(waits, timeout=30) != pid
            with pytest.raises(ActorDiedError):
                other.get(held, timeout=30)

    def test_a_killed_actors_process_is_gone(self, context: JobContext) -> None:
        mortal = context.create_actor(Mortal)
        pid = context.get(mortal.pid())
        context.kill(mortal)
        until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends")

    def test_one_that_is_killed_while_the_first_process_starts_is_gone(self) -> None:
        for _ in range(10):
            with create_context("process", max_workers=2) as context:
                start = threading.Barrier(2)

                def begin(context: JobContext = context, start: threading.Barrier = start) -> None:
                    start.wait()
                    context.run(abs, 1)

                first = threading.Thread(target=begin)
                first.start()
                start.wait()
                context.kill(context.create_actor(Counter))
                first.join()
            # Leaving the block has waited for its process, which had waited for the other's start.

    def test_a_dropped_actors_process_is_gone(self, context: JobContext) -> None:
        pid = context.get(context.create_actor(Mortal).pid())
        until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends")

    def test_one_with_several_threads_leaves_as_a_program_does(self, tmp_path: Path) -> None:
        with deadline(60), create_context("process") as context:
            actor = context.create_actor(
                Leaving, tmp_path / "dropped", options=ActorOptions(max_concurrency=8)
            )
            context.get(actor.ready())
            del actor
            until((tmp_path / "dropped").exists, "its process leaves")
            actor = context.create_actor(Leaving, tmp_path / "ended", options=ActorOptions(max_concurrency=8))
            context.get(actor.ready())
        assert (tmp_path / "ended").exists()

    def test_one_with_several_threads_answers_other_programs_before_it_leaves(self, tmp_path: Path) -> None:
        options = ActorOptions(name="leaving", max_concurrency=2)
        started, gates = [[Gate(tmp_path / f"{what}{n}") for n in range(2)] for what in ("started", "gate")]
        with deadline(60), create_context("process", namespace="team") as first:
            actor = first.create_actor(Leaving, tmp_path / "left", options=options)
            first.get(actor.ready())
            with create_context("process", namespace="team") as second:
                found = second.get_actor("leaving")
                held = [found.hold(*both) for both in zip(started, gates, strict=True)]
                for each in started:
                    each.wait()
                first.shutdown(wait=False)
                until(lambda: is_dead(first, actor), "its context has ended it")
                for gate, call in zip(gates, held, strict=True):
                    gate.open()
                    assert second.get(call) == "held"
        assert (tmp_path / "left").exists()

    def test_a_dropped_actors_process_is_gone_though_a_stream_of_it_was_open(
        self, context: JobContext
    ) -> None:
        mortal = context.create_actor(Mortal)
        pid, stream = context.get(mortal.pid()), mortal.count()
        assert context.get(next(stream)) == 0
        del mortal, stream
        until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends")

    def test_a_handle_in_a_task_keeps_an_actor_alive(self, context: JobContext, tmp_path: Path) -> None:
        gate = Gate(tmp_path / "gate")

        def call_late(handle: object) -> int:
            gate.wait()
            current = get_job_context()
            return int(current.get(handle.value()))  # type: ignore[attr-defined]

        late = context.create_task(call_late, context.create_actor(Counter, 7))
        gate.open()
        assert context.get(late) == 7

    @pytest.mark.parametrize("spec", ["threadpool", "process"])
    def test_a_call_that_is_cancelled_in_the_queue_does_not_run(self, spec: str, tmp_path: Path) -> None:
        started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
        with create_context(spec) as context:
            writer = context.create_actor(Writer, tmp_path)
            slow, queued = writer.wait(started, gate), writer.write("queued")
            started.wait()
            assert context.cancel(queued)
            gate.open()
            assert context.get([slow, writer.write("after")]) == [None, None]
            with pytest.raises(TaskCancelledError):
                context.get(queued)
        assert not (tmp_path / "queued").exists()


class TestSharing:
    def test_a_detached_actor_is_found_by_another_program(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, name="tally", lifetime="detached")
        assert context.get(counter.increment(4)) == 4
        try:
            out = run_elsewhere("""
                from fray import create_context
                with create_context("process") as context:
                    counter = context.get_actor("tally")
                    print(context.get(counter.increment()))
                    print([context.get(item) for item in counter.countdown()])
            """)
            assert out == "5\n[5, 4, 3, 2, 1]\n"
            assert context.get(counter.value()) == 5
        finally:
            context.kill(counter)

    def test_it_outlives_the_program_that_made_it_and_the_command_line_ends_it(
        self, context: JobContext, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run_elsewhere("""
            from fray import create_context
            from fray.testing.tasks import Counter
            with create_context("process") as context:
                counter = context.create_actor(Counter, 3, name="left", lifetime="detached")
                context.get(counter.value())
        """)
        counter = context.get_actor("left")
        assert context.get(counter.increment()) == 4
        assert main(["actors", "list", "--json"]) == 0
        [row] = json.loads(capsys.readouterr().out)
        assert (row["name"], row["lifetime"], row["namespace"]) == ("left", "detached", "default")
        assert main(["actors", "kill", "left", "--timeout", "60"]) == 0
        assert "killed Counter('left')" in capsys.readouterr().out
        with pytest.raises(ActorDiedError):
            context.get(counter.value())
        assert main(["actors", "kill", "left"]) == 1
        assert "no actor named 'left'" in capsys.readouterr().err

    def test_what_it_started_ends_with_it(self) -> None:
        started = run_elsewhere("""
            import subprocess
            from fray import create_context

            class Starter:
                def start(self):
                    return subprocess.Popen(["sleep", "600"]).pid

            with create_context("process", max_workers=1) as context:
                starter = context.create_actor(Starter, name="starter", lifetime="detached")
                print(context.get(starter.start()))
        """)
        pid = int(started)
        assert not has_ended(pid)
        try:
            assert main(["actors", "kill", "starter", "--timeout", "60"]) == 0
            until(lambda: has_ended(pid), "it has ended", 20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def test_the_command_line_says_so_where_an_actor_does_not_end(
        self, context: JobContext, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mortal = context.create_actor(Mortal, name="stopped", lifetime="detached")
        pid = context.get(mortal.pid())
        os.kill(pid, signal.SIGSTOP)
        try:
            assert main(["actors", "kill", "stopped", "--timeout", "0.1"]) == 1
            said = capsys.readouterr().err
            assert "its process does not answer" in said
            assert "Traceback" not in said
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends")

    def test_only_the_user_can_open_what_leads_to_it(self, context: JobContext, state_dir: Path) -> None:
        counter = context.create_actor(Counter, name="private", lifetime="detached")
        context.get(counter.value())
        try:
            folder = state_dir / "actors" / "default"
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            for path in folder.glob("*.sock"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
        finally:
            context.kill(counter)

    def test_a_namespace_is_shared_by_contexts_and_its_actors_end_with_their_maker(self) -> None:
        with create_context("process", namespace="team") as first:
            counter = first.create_actor(Counter, name="tally")
            with create_context("process", namespace="team") as second:
                found = second.get_actor("tally")
                assert second.get(found.increment()) == 1
                assert second.get(second.run(_increment_by_name, "tally")) == 2
                with pytest.raises(ActorAlreadyExistsError):
                    second.create_actor(Counter, name="tally")
                shared = second.create_actor(Counter, name="tally", get_if_exists=True)
                assert second.get(shared.value()) == 2
            assert first.get(counter.value()) == 2
        with create_context("process", namespace="team") as third:
            assert third.get(third.create_actor(Counter, 9, name="tally").value()) == 9

    def test_none_is_lost_that_is_made_while_another_is_handed_over(self, context: JobContext) -> None:
        assert context.get(context.run(_make_at_once, 8, 12), timeout=100) == [list(range(8))] * 12

    def test_a_shared_actor_that_is_made_anew_is_found_again(self) -> None:
        with create_context("process", namespace="team") as first:
            mortal = first.create_actor(Mortal, name="mortal", options=ActorOptions(max_restarts=1))
            pid = first.get(mortal.pid())
            os.kill(pid, signal.SIGKILL)
            assert until(lambda: pid_of(first, mortal) not in (pid, None), "it is there again")
            with create_context("process", namespace="team") as second:
                found = second.get_actor("mortal")
                assert second.get(found.pid(), timeout=60) == first.get(mortal.pid())

    def test_a_handle_of_a_shared_actor_travels_to_another_context(self) -> None:
        with create_context("process", namespace="team") as first:
            counter = first.create_actor(Counter, name="tally")
            first.get(counter.value())
            with create_context("threadpool") as threads:
                # Not through pickle here: a context of threads calls it where it is.
                assert first.get(threads.get(threads.run(counter.increment))) == 1

    def test_a_handle_from_another_program_that_is_dropped_leaves_no_connection(
        self, context: JobContext
    ) -> None:
        counter = context.create_actor(Counter, name="tally", lifetime="detached")
        try:
            context.get(counter.value())
            out = run_elsewhere(f"""
                import os, pickle
                from fray import create_context, use_context
                from fray.testing.gates import until

                def sockets():
                    files = (f"/proc/self/fd/{{number}}" for number in os.listdir("/proc/self/fd"))
                    return sum("socket:" in os.path.realpath(file) for file in files)

                with create_context("process", max_workers=1) as context, use_context(context):
                    context.get(context.run(abs, -1))
                    before = sockets()
                    for _ in range(5):
                        counter = pickle.loads({pickle.dumps(counter)!r})
                        total = context.get(counter.increment())
                    assert sockets() > before
                    del counter
                    until(lambda: sockets() <= before, "the connections are closed", 20)
                    print(total)
            """)
            assert out == "5\n"
        finally:
            context.kill(counter)

    def test_an_actor_of_a_killed_program_is_gone_also_where_a_child_of_that_lives(self) -> None:
        code = """
            import os, signal, sys, time
            from fray import create_context
            from fray.testing.tasks import Counter
            context = create_context("process", max_workers=1, namespace="team")
            counter = context.create_actor(Counter, name="tally")
            context.get(counter.value())
            child = os.fork()
            if not child:
                os.close(1)
                time.sleep(600)
            print(child, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        killed = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, timeout=60, check=False
        )
        try:
            with create_context("process", max_workers=1, namespace="team") as context:

                def is_gone() -> bool:
                    try:
                        context.get_actor("tally")
                    except ActorNotFoundError:
                        return True
                    return False

                until(is_gone, "the actor's own process has ended", 20)
                assert context.get(context.create_actor(Counter, 5, name="tally").value(), timeout=20) == 5
        finally:
            os.kill(int(killed.stdout), signal.SIGKILL)

    def test_large_values_reach_an_actor_of_another_process(self, context: JobContext) -> None:
        kept = context.create_actor(dict, name="kept", lifetime="detached")
        try:
            with create_context("process") as other:
                found = other.get_actor("kept")
                data = bytes(1_000_000)
                other.get(found.update(data=data))
                assert other.get(found.get("data")) == data
        finally:
            context.kill(kept)

    def test_an_open_stream_of_somebody_elses_actor_keeps_no_program_from_ending(
        self, context: JobContext, tmp_path: Path
    ) -> None:
        writer = context.create_actor(Writer, tmp_path, name="writer", lifetime="detached")
        try:
            out = run_elsewhere("""
                from fray import create_context
                context = create_context("process")
                stream = context.get_actor("writer").count()
                print(context.get(next(stream)))
                context.shutdown()
            """)
            assert out == "0\n"
            until((tmp_path / "closed").exists, "the generator is closed")
            assert context.get(writer.write("after")) is None
        finally:
            context.kill(writer)

    def test_a_context_that_is_shut_down_takes_no_name(self, context: JobContext, state_dir: Path) -> None:
        context.get(context.run(abs, -1))
        context.shutdown()
        with pytest.raises(ContextClosedError):
            context.create_actor(Counter, name="late", lifetime="detached")
        assert not list(state_dir.glob("actors/default/*.*"))

    def test_a_detached_actor_whose_constructor_fails_ends_also_while_its_context_does(
        self, tmp_path: Path
    ) -> None:
        context = create_context("process")
        started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
        context.create_actor(Refusing, started, gate, name="refusing", lifetime="detached")
        started.wait()
        with detached_ends("refusing"):
            context.shutdown(wait=False)
            gate.open()
            context.shutdown()

    @pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGKILL)"])
    def test_a_detached_actor_that_is_not_constructed_ends_with_its_creator(
        self, end: str, tmp_path: Path
    ) -> None:
        code = f"""
            import os, signal
            from pathlib import Path
            from fray import create_context
            from fray.testing.gates import Gate

            class Slow:
                def __init__(self, started, gate):
                    started.open()
                    while True:
                        try:
                            gate.wait()
                        except KeyboardInterrupt:
                            continue

            with create_context("process") as context:
                started = Gate(Path({os.fspath(tmp_path / "started")!r}))
                context.create_actor(Slow, started, Gate(Path("nowhere")), name="slow", lifetime="detached")
                started.wait()
                {end}
            """
        with detached_ends("slow"):
            done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=False)
            assert done.returncode != 0
            assert (tmp_path / "started").exists()

    def test_a_task_kills_a_detached_actor_also_while_its_context_ends(self, tmp_path: Path) -> None:
        context = create_context("process")
        started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
        actor = context.create_actor(Mortal, name="mortal", lifetime="detached")
        pid = context.get(actor.pid())
        try:
            context.run(_kill_late, actor, started, gate)
            started.wait()
            context.shutdown(wait=False)
            gate.open()
            with deadline(60):
                context.shutdown()
            until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends", 20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def test_a_detached_actor_can_be_killed_after_its_context_has_ended(self, context: JobContext) -> None:
        with create_context("process") as ended:
            actor = ended.create_actor(Mortal, name="mortal", lifetime="detached")
            pid = ended.get(actor.pid())
        assert context.get(context.get_actor("mortal").pid()) == pid
        try:
            ended.kill(actor)
            until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends", 20)
            ended.kill(actor)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def test_the_end_of_the_fork_server_is_noticed_where_a_detached_actor_lives_on(
        self, context: JobContext, tmp_path: Path
    ) -> None:
        def hold() -> None:
            (tmp_path / "begun").touch()
            time.sleep(600)

        mortal = context.create_actor(Mortal, name="mortal", lifetime="detached")
        try:
            context.get(mortal.pid())
            server = context.get(context.run(os.getppid))
            held = context.create_task(hold)
            until((tmp_path / "begun").exists, "the task has begun: one that has not runs on another worker")
            os.kill(server, signal.SIGKILL)
            with pytest.raises(WorkerDiedError):
                context.get(held, timeout=20)
        finally:
            context.kill(mortal)

    def test_a_dead_detached_actor_is_not_taken_for_a_living_one_where_a_child_of_it_lives(
        self, context: JobContext
    ) -> None:
        mortal = context.create_actor(Mortal, name="mortal", lifetime="detached")
        child = context.get(mortal.fork())
        pid = context.get(mortal.pid())
        try:
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ActorDiedError):
                context.get(mortal.pid(), timeout=20)
            # A process that ends closes its sockets one after another: for a moment it can still be reached.
            until(lambda: not Path(f"/proc/{pid}").exists(), "its process ends", 20)
            with create_context("process") as other, pytest.raises(ActorNotFoundError):
                other.get(other.get_actor("mortal").pid(), timeout=20)
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_detached_actor_has_no_restarts(self, context: JobContext) -> None:
        options = ActorOptions(name="x", lifetime="detached", max_restarts=1)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="max_restarts"):
            context.create_actor(Counter, options=options)

    def test_jobs_of_one_family_share_an_actor(self, tmp_path: Path) -> None:
        cluster = create_cluster("local")
        job = cluster.launch(JobRequest("family", Entrypoint.from_callable(_parent, [tmp_path])))
        info = cluster.wait(job, timeout=60)
        assert info.status == "succeeded", info.error_message
        assert (tmp_path / "seen").read_text() == "3"

    def test_a_detached_actor_outlives_the_job_that_made_it(self) -> None:
        cluster = create_cluster("local")
        job = cluster.launch(JobRequest("maker", Entrypoint.from_callable(_make_detached)))
        info = cluster.wait(job, timeout=60)
        assert info.status == "succeeded", info.error_message
        with create_context("process", namespace="makers") as context:
            left = context.get_actor("left")
            try:
                assert context.get(left.increment()) == 4
            finally:
                context.kill(left)


def _kill_late(actor: Any, started: Gate, gate: Gate) -> None:
    started.open()
    gate.wait()
    get_job_context().kill(actor)


@contextlib.contextmanager
def detached_ends(name: str) -> Iterator[None]:
    """Fail unless the detached actor of that name has ended soon after the block."""
    with deadline(60):
        yield
    with create_context("process") as context:

        def is_gone() -> bool:
            try:
                context.get_actor(name)
            except ActorNotFoundError:
                return True
            return False

        try:
            until(is_gone, "it ends", 20)
        except AssertionError:
            context.kill(context.get_actor(name))
            raise


def _make_detached() -> None:
    with create_context("process", namespace="makers") as context:
        context.get(context.create_actor(Counter, 3, name="left", lifetime="detached").value())


def _increment_by_name(name: str) -> int:
    current = get_job_context()
    return int(current.get(current.get_actor(name).increment()))


def _parent(folder: Path) -> None:
    from fray.cluster import current_cluster

    with create_context("process") as context:
        counter = context.create_actor(Counter, name="tally")
        cluster = current_cluster()
        child = Entrypoint.from_callable(_child)
        jobs = [cluster.launch(JobRequest(f"child{index}", child)) for index in range(3)]
        cluster.wait(jobs, raise_on_failure=True)
        (folder / "seen").write_text(str(context.get(counter.value())))


def _child() -> None:
    with create_context("process") as context:
        context.get(context.get_actor("tally").increment())
