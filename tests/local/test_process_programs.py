"""What a program sees of workers: their output, what they know of it, how long they live."""

import io
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray import JobContext, UnsupportedError, WorkerDiedError, create_context, get_job_context
from fray.testing.gates import Gate


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


class TestPrograms:
    def test_output_comes_out_at_the_caller_before_the_result(
        self, context: JobContext, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def speak() -> None:
            print("to stdout")
            print("to stderr", file=sys.stderr)

        context.get(context.run(speak))
        assert capsys.readouterr() == ("to stdout\n", "to stderr\n")

    def test_lines_of_several_workers_are_whole(
        self, context: JobContext, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def chatter(who: str) -> None:
            for _ in range(200):
                print(who * 50)

        context.get([context.run(chatter, who) for who in "abcd"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 800
        assert set(lines) == {who * 50 for who in "abcd"}

    def test_what_takes_no_output_from_other_threads_keeps_no_task_from_its_end(
        self, context: JobContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class OfTheMainThread(io.StringIO):
            def write(self, _: str, /) -> int:
                raise RuntimeError("main thread is not in main loop")

        def speak(code: int) -> int:
            sys.stdout.write("no end of a line")
            sys.stdout.flush()
            if code:
                os._exit(code)
            return code

        monkeypatch.setattr(sys, "stdout", OfTheMainThread())
        with pytest.raises(WorkerDiedError, match="exit code 3"):
            context.get(context.run(speak, 3), timeout=20)
        assert context.get(context.run(speak, 0), timeout=20) == 0

    def test_a_task_that_closed_the_descriptor_of_its_output_has_a_result(self, context: JobContext) -> None:
        def close() -> int:
            sys.stdout.write("no end of a line")
            os.close(1)
            return 7

        assert context.get(context.run(close), timeout=20) == 7

    def test_a_very_long_line_takes_about_the_time_of_short_ones(
        self, context: JobContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = io.StringIO()
        monkeypatch.setattr(sys, "stdout", shown)

        def write(piece: str, times: int) -> None:
            for _ in range(times):
                print(piece, end="")
            print("end")

        def seconds_for(piece: str) -> float:
            before = time.process_time()
            context.get(context.run(write, piece, 500))
            return time.process_time() - before

        in_lines = seconds_for(("é" * 31 + "\n") * 512)
        in_one = seconds_for("é" * 16384)
        assert shown.getvalue() == ("é" * 31 + "\n") * 512 * 500 + "end\n" + "é" * 16384 * 500 + "end\n"
        assert in_one < 4 * in_lines

    def test_a_task_that_prints_without_a_pause_holds_up_no_other(
        self, context: JobContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        shown, done = threading.Event(), Gate(tmp_path / "done")

        class SlowSink(io.StringIO):
            def write(self, text: str) -> int:
                shown.set()
                time.sleep(0.05)  # the task has printed more meanwhile
                return len(text)

        def print_without_a_pause() -> None:
            while not done.is_open():
                print("x" * 9999)

        monkeypatch.setattr(sys, "stdout", SlowSink())
        printing = context.run(print_without_a_pause)
        try:
            assert shown.wait(60)
            assert context.get(context.run(abs, -1), timeout=30) == 1
        finally:
            done.open()
        context.get(printing)

    def test_the_callers_program_does_not_run_again(self, tmp_path: Path) -> None:
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent("""
            from fray import create_context
            print("once")
            class Point:
                def __init__(self, x):
                    self.x = x
            def double(point):
                return Point(2 * point.x)
            with create_context("process", max_workers=2) as context:
                points = [context.get(context.run(double, Point(x))) for x in range(3)]
            assert all(type(point) is Point for point in points)
            print([point.x for point in points])
        """)
        )
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("once\n[0, 2, 4]\n", "")

    def test_a_function_sees_what_it_captured_as_it_was_when_it_was_run(self, context: JobContext) -> None:
        seen: list[int] = []

        def count() -> int:
            return len(seen)

        first = context.run(count)
        seen.append(1)
        assert context.get([first, context.run(count)]) == [0, 1]

    def test_large_captured_values_are_shipped_once_per_worker(self, context: JobContext) -> None:
        weights = bytes(5_000_000)

        class Model:
            loads = 0

            def __reduce__(self) -> tuple[object, ...]:
                return _load_model, (weights,)

        model = Model()

        def use() -> int:
            return _loads if model is not None else 0

        assert max(context.get([context.run(use) for _ in range(50)])) <= 1

    def test_workers_are_replaced_after_so_many_tasks(self) -> None:
        with create_context("process", max_workers=1, max_tasks_per_worker=2) as context:
            pids = context.get([context.run(os.getpid) for _ in range(6)])
        assert [len(list(same)) for _, same in itertools.groupby(pids)] == [2, 2, 2]

    def test_warm_workers_are_used_again(self, context: JobContext) -> None:
        assert len({context.get(context.run(os.getpid)) for _ in range(20)}) <= 2

    def test_a_worker_sees_the_callers_directory_and_variables(
        self, context: JobContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FRAY_TEST_COLOUR", "green")
        assert context.get(context.run(os.getcwd)) == os.fspath(tmp_path)
        assert context.get(context.run(os.getenv, "FRAY_TEST_COLOUR")) == "green"

    def test_a_copy_of_the_context_cannot_end_it(self, context: JobContext) -> None:
        def end() -> None:
            get_job_context().shutdown()

        with pytest.raises(UnsupportedError, match="owner"):
            context.get(context.run(end))
        assert context.get(context.run(abs, -1)) == 1


_loads = 0


def _load_model(weights: bytes) -> int:
    global _loads
    _loads += 1
    return len(weights)
