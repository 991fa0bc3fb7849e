"""What workers are for: parallel, isolated, killed without harm."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from fray import (
    JobContext,
    RuntimeEnv,
    TaskCancelledError,
    TaskOptions,
    UnsupportedError,
    WorkerDiedError,
    create_context,
)
from fray.backend import process_tree
from fray.testing import tasks
from fray.testing.gates import Gate, until
from fray.testing.interrupting import interrupted


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


sleep_for: Callable[..., None] = time.sleep  # which says that it takes numbers


def kill_self(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class TestDeath:
    def test_a_killed_worker_fails_its_task_only_and_says_by_which_signal(
        self, context: JobContext, tmp_path: Path
    ) -> None:
        gate = Gate(tmp_path / "gate")
        other = context.create_task(gate.wait)
        with pytest.raises(WorkerDiedError, match=r"ran kill_self\(\) was ended by SIGKILL \(signal 9\)"):
            context.get(context.run(kill_self))
        gate.open()
        assert context.get(other) is None
        assert context.get(context.run(abs, -1)) == 1

    def test_a_worker_that_exits_fails_its_task(self, context: JobContext) -> None:
        with pytest.raises(WorkerDiedError, match="exit code 3"):
            context.get(context.run(os._exit, 3))

    def test_a_system_without_waitid_notices_it_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """As macOS before Python 3.13: the fork server finds the function missing."""
        (tmp_path / "sitecustomize.py").write_text("import os\nvars(os).pop('waitid', None)\n")
        monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
        with create_context("process", max_workers=1) as context:
            assert not context.get(context.run(hasattr, os, "waitid"))
            with pytest.raises(WorkerDiedError, match="exit code 3"):
                context.get(context.run(os._exit, 3))
            assert context.get(context.run(abs, -1)) == 1
        assert not capfd.readouterr().err

    def test_what_was_sent_ahead_of_a_dead_worker_runs_elsewhere(self, tmp_path: Path) -> None:
        def step(index: int) -> int:
            with (tmp_path / "ran").open("ab") as file:
                file.write(b".")
            if index == 500:
                kill_self()
            return index

        with create_context("process", max_workers=1) as context:
            refs = [context.run(step, index) for index in range(1000)]
            for index, ref in enumerate(refs):
                if index == 500:
                    with pytest.raises(WorkerDiedError):
                        context.get(ref)
                else:
                    assert context.get(ref) == index
        assert (tmp_path / "ran").stat().st_size == 1000  # each exactly once

    def test_max_retries_runs_it_again(self, context: JobContext, tmp_path: Path) -> None:
        tries = tmp_path / "tries"

        def at_third() -> int:
            with tries.open("ab") as file:
                file.write(b".")
            if tries.stat().st_size < 3:
                kill_self()
            return tries.stat().st_size

        assert context.get(context.create_task(at_third, options=TaskOptions(max_retries=2))) == 3
        tries.unlink()
        with pytest.raises(WorkerDiedError):
            context.get(context.create_task(at_third, options=TaskOptions(max_retries=1)))

    def test_a_stream_ends_with_the_death_of_its_worker(self, context: JobContext) -> None:
        def two_and_out() -> Iterator[int]:
            yield 1
            yield 2
            kill_self()

        stream = context.run(two_and_out)
        assert [context.get(next(stream)), context.get(next(stream))] == [1, 2]
        with pytest.raises(WorkerDiedError):
            context.get(next(stream))

    def test_what_a_task_started_ends_with_its_worker(self, context: JobContext) -> None:
        def start() -> int:
            return subprocess.Popen(["sleep", "600"]).pid

        pid = context.get(context.run(start))
        assert alive(pid)
        context.shutdown()
        until(lambda: not alive(pid), "the task's child ends")

    def test_a_caller_that_is_killed_leaves_nobody(self, tmp_path: Path) -> None:
        program = """
            import os, sys, time
            from fray import create_context
            context = create_context("process", max_workers=2)
            print(*[context.get(context.run(os.getpid))], flush=True)
            context.create_task(time.sleep, 600)
            context.get(context.create_actor(dict).keys())
            time.sleep(600)
        """
        caller = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
        )
        with caller:
            assert caller.stdout is not None
            worker = int(caller.stdout.readline())
            group = Path(f"/proc/{worker}/stat").read_text().split()
            server = int(group[3])
            caller.kill()
        until(lambda: not alive(worker) and not alive(server), "worker and fork server end")


class TestStopping:
    def test_a_running_task_is_interrupted_and_its_worker_goes_on(
        self, context: JobContext, tmp_path: Path
    ) -> None:
        started, cleaned = Gate(tmp_path / "started"), Gate(tmp_path / "cleaned")

        def sleep() -> None:
            try:
                started.open()
                time.sleep(600)
            finally:
                cleaned.open()

        ref = context.create_task(sleep)
        started.wait()
        assert context.cancel(ref)
        with pytest.raises(TaskCancelledError, match=r"sleep\(\)"):
            context.get(ref)
        until(cleaned.is_open, "the task's finally block ran")

    def test_a_task_that_does_not_listen_is_killed(self, tmp_path: Path) -> None:
        started = Gate(tmp_path / "started")

        def deaf() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            started.open()
            time.sleep(600)

        with create_context("process", max_workers=1) as context:
            ref = context.create_task(deaf)
            started.wait()
            assert context.cancel(ref)
            assert context.get(context.run(abs, -2), timeout=30) == 2

    def test_a_task_with_a_handler_of_its_own_does_not_get_the_signal(self, tmp_path: Path) -> None:
        started, got = Gate(tmp_path / "started"), Gate(tmp_path / "got")

        def listen() -> None:
            signal.signal(signal.SIGUSR1, lambda *_: got.open())
            started.open()
            while True:
                time.sleep(0.01)

        with create_context("process", max_workers=1) as context:
            listening = context.run(listen)
            started.wait()
            context.cancel(listening)
            with pytest.raises(TaskCancelledError):
                context.get(listening)
            assert context.get(context.run(abs, -1), timeout=30) == 1  # in another process
        assert not got.is_open()

    def test_what_is_cancelled_behind_a_task_does_not_end_that_one(self, tmp_path: Path) -> None:
        """Short tasks are sent ahead; behind one that holds the interpreter they cannot be given back."""
        pipe, started = tmp_path / "pipe", Gate(tmp_path / "started")
        os.mkfifo(pipe)

        def maybe_hold(hold: bool) -> str:
            if hold:
                started.open()
                os.close(ctypes.PyDLL(None).open(os.fsencode(pipe), os.O_RDONLY))  # waits for a writer
            return "done"

        with create_context("process", max_workers=1) as context:
            for _ in range(3):  # until it is known that they are short
                context.get([context.run(maybe_hold, False) for _ in range(50)])
            # The end of the first ones is when others are sent ahead.
            refs = [context.run(maybe_hold, index == 3) for index in range(24)]
            held, behind = refs[3], refs[4:]
            started.wait()
            assert all(map(context.cancel, behind))
            assert context.wait([held], timeout=3) == ([], [held])  # longer than a cancelled task may take
            pipe.write_text("")
            assert context.get(held, timeout=30) == "done"
            assert context.get(context.run(abs, -2), timeout=30) == 2

    def test_a_task_that_is_cancelled_on_its_way_to_its_worker_does_not_run_on(self) -> None:
        with create_context("process", max_workers=1) as context:
            context.get(context.run(abs, -1))
            lines = line = 1
            while line <= lines:
                late: Future[float] = Future()
                ref = context.run(sleep_for, late)
                give, cancel = partial(late.set_result, 600.0), partial(context.cancel, ref)
                lines = interrupted(give, cancel, line, "_process.owner.worker_connection")
                assert context.get(context.run(abs, -2), timeout=60) == 2
                line += 1
            assert lines > 20  # that it was cancelled at

    def test_a_dropped_stream_closes_its_generator(self, context: JobContext, tmp_path: Path) -> None:
        closed = Gate(tmp_path / "closed")

        def endless() -> Iterator[int]:
            try:
                yield from itertools.count()
            finally:
                closed.open()

        stream = context.run(endless)
        assert context.get(next(stream)) == 0
        del stream
        until(closed.is_open, "the generator is closed")

    def test_ctrl_c_ends_everything_with_the_callers_traceback(self, tmp_path: Path) -> None:
        program = """
            import os, signal, sys, time
            from fray import create_context
            signal.signal(signal.SIGINT, signal.default_int_handler)

            def interrupt(pid, path):
                while not os.path.exists(path):
                    time.sleep(0.01)
                os.kill(pid, signal.SIGINT)
                time.sleep(600)

            def sleep(path):
                open(path, "w").close()
                time.sleep(600)

            path = sys.argv[1]
            with create_context("process", max_workers=2) as context:
                print(context.get(context.run(os.getpid)), flush=True)
                context.get([context.run(interrupt, os.getpid(), path), context.run(sleep, path)])
        """
        # Once both run the caller waits: it would not get Ctrl-C in the middle of a finalizer.
        command = [sys.executable, "-c", textwrap.dedent(program), os.fspath(tmp_path / "sleeps")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "KeyboardInterrupt" in done.stderr
        assert 'File "<string>", line 19, in <module>' in done.stderr
        assert not alive(int(done.stdout))

    def test_a_program_that_a_task_starts_listens_to_ctrl_c(self, context: JobContext) -> None:
        def start_and_interrupt() -> int:
            with subprocess.Popen(
                [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as program:
                assert program.stdout is not None
                program.stdout.readline()
                program.send_signal(signal.SIGINT)
                try:
                    return program.wait(20)
                finally:
                    program.kill()

        assert context.get(context.run(start_and_interrupt)) == -signal.SIGINT

    @pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
    def test_a_signal_to_all_of_a_program_ends_no_task(self, tmp_path: Path, number: signal.Signals) -> None:
        """As Slurm sends it, where it knows processes by their descent."""
        started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")

        def work() -> str:
            started.open()
            gate.wait()
            return subprocess.run(
                [sys.executable, "-c", f"import signal; print(signal.getsignal({number:d}).name)"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout

        with create_context("process", max_workers=1) as context:
            ref = context.run(work)
            started.wait()
            process_tree.send(process_tree.descendants(os.getpid()), number)
            gate.open()
            assert context.get(ref, timeout=30) == "SIG_DFL\n"


class TestResources:
    def test_cpus_are_counted(self, context: JobContext, tmp_path: Path) -> None:
        def overlap(index: int) -> int:
            mark = tmp_path / f"{index}.running"
            mark.touch()
            time.sleep(0.05)
            seen = len(list(tmp_path.glob("*.running")))
            mark.unlink()
            return seen

        two = TaskOptions(resources={"CPU": 2})
        refs = [context.create_task(overlap, index, options=two) for index in range(4)]
        refs += [context.run(overlap, index) for index in range(4, 8)]
        assert context.get(refs[:4]) == [1] * 4
        assert max(context.get(refs[4:])) <= 2

    def test_a_large_task_is_not_passed_by_for_ever(self, context: JobContext, tmp_path: Path) -> None:
        def sleep(index: int) -> None:
            time.sleep(0.05)
            (tmp_path / str(index)).touch()

        small = [context.run(time.sleep, 0.01) for _ in range(20)]
        large = context.create_task(os.listdir, tmp_path, options=TaskOptions(resources={"CPU": 2}))
        context.get([context.run(sleep, index) for index in range(40)])
        assert len(context.get(large)) < 10
        context.get(small)

    def test_short_tasks_that_keep_coming_do_not_pass_an_older_one_by(self, context: JobContext) -> None:
        context.get([context.run(abs, -1) for _ in range(2000)])  # how short they are is known now
        for _ in range(12):
            coming = deque(context.run(abs, -1) for _ in range(2000))
            older = context.create_task(abs, -2, options=TaskOptions(resources={"CPU": 2}))
            # Up to 500 that are younger may be on their way to each of the two workers already.
            for _ in range(4000):
                coming.append(context.run(abs, -1))
                context.get(coming.popleft())
                if context.wait([older], timeout=0)[0]:
                    break
            else:
                pytest.fail("2,000 that came later have ended before it")
            context.get(list(coming))

    def test_what_the_machine_never_has_is_refused_at_once(self, context: JobContext) -> None:
        with pytest.raises(UnsupportedError, match=r"CPU=3 .* CPU=2"):
            context.create_task(abs, 1, options=TaskOptions(resources={"CPU": 3}))
        with pytest.raises(UnsupportedError, match="licence=1"):
            context.create_task(abs, 1, options=TaskOptions(resources={"licence": 1}))

    def test_resources_of_ones_own_are_counted(self, tmp_path: Path) -> None:
        with create_context("process", max_workers=4, resources={"licence": 1}) as context:
            options = TaskOptions(resources={"licence": 1, "CPU": 0})
            gate = Gate(tmp_path / "gate")
            holder = context.create_task(gate.wait, options=options)
            second = context.create_task(tasks.add, -2, 3, options=options)
            assert context.get(context.run(abs, -2)) == 2
            assert context.wait([second], timeout=0.1) == ([], [second])
            gate.open()
            context.get(holder)
            assert context.get(second) == 1

    def test_gpus_are_assigned(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        gate = Gate(tmp_path / "gate")

        def mine(index: int) -> str:
            (tmp_path / f"started{index}").touch()
            gate.wait()
            return os.environ["CUDA_VISIBLE_DEVICES"]

        with create_context("process", max_workers=2) as context:
            one = TaskOptions(resources={"GPU": 1})
            refs = [context.create_task(mine, index, options=one) for index in range(2)]
            until(lambda: len(list(tmp_path.glob("started*"))) == 2, "both run")
            gate.open()
            assert sorted(context.get(refs)) == ["0", "1"]
            both = context.create_task(mine, 2, options=TaskOptions(resources={"GPU": 2}))
            assert sorted(context.get(both).split(",")) == ["0", "1"]

    def test_variables_of_a_task_do_not_reach_others(self, context: JobContext) -> None:
        options = TaskOptions(runtime_env=RuntimeEnv(env={"FRAY_TEST_COLOUR": "red"}))
        assert context.get(context.create_task(os.getenv, "FRAY_TEST_COLOUR", options=options)) == "red"
        assert context.get([context.run(os.getenv, "FRAY_TEST_COLOUR") for _ in range(4)]) == [None] * 4
        packages = TaskOptions(runtime_env=RuntimeEnv(package_requirements=["six"]))
        with pytest.raises(UnsupportedError, match="create_environment"):
            context.create_task(abs, 1, options=packages)
