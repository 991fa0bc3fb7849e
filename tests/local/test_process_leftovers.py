"""What a task leaves behind: it neither reaches the worker's next task nor outlives the context."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray import TaskOptions, UnsupportedError, create_context
from fray.cluster import Entrypoint, JobRequest, create_cluster
from fray.job import JobContext
from fray.testing.gates import Gate, until


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=1) as context:
        yield context


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def leave_a_pool() -> list[int]:
    module = sys.modules["concurrent.futures"]
    pool = concurrent.futures.ProcessPoolExecutor(2)
    module.left_behind = pool  # type: ignore[attr-defined]
    return list(pool.map(abs, [-1, -2]))


def leave_joblib() -> list[int]:
    import joblib  # type: ignore[import-untyped]

    return list(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(number) for number in (-1, -2, -3)))


def start_sleeper() -> int:
    process = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    return process.pid


def leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=[600]).start()


def launch(gate: Gate) -> str:
    return create_cluster("local").launch(JobRequest("held", Entrypoint.from_callable(gate.wait)))


class TestTheEndOfAContext:
    @pytest.mark.timeout(240)
    @pytest.mark.parametrize("leave", [leave_a_pool, leave_joblib])
    def test_a_pool_that_a_task_left_does_not_hold_it_up(self, leave: Callable[[], list[int]]) -> None:
        with create_context("process", max_workers=1) as context:
            assert context.get(context.run(leave))[:2] == [1, 2]
            started = time.monotonic()
        assert time.monotonic() - started < 100  # it was 299 s for joblib, and for ever

    @pytest.mark.timeout(240)
    def test_a_thread_that_never_ends_does_not_hold_it_up(self) -> None:
        with create_context("process", max_workers=1) as context:
            context.get(context.run(leave_a_thread))
            started = time.monotonic()
        assert time.monotonic() - started < 100  # it was 299 s for joblib, and for ever

    @pytest.mark.timeout(100)
    def test_a_worker_that_is_stopped_does_not_hold_it_up(self) -> None:
        with create_context("process", max_workers=1) as context:
            worker = context.get(context.run(os.getpid))
            os.kill(worker, signal.SIGSTOP)
        assert not alive(worker)

    def test_a_program_in_a_session_of_its_own_ends_with_its_worker(self) -> None:
        with create_context("process", max_workers=1) as context:
            pid = context.get(context.run(start_sleeper))
            assert alive(pid)
        assert not alive(pid)

    def test_a_job_that_a_task_launched_goes_on(self, tmp_path: Path) -> None:
        gate = Gate(tmp_path / "gate")
        with create_context("process", max_workers=1) as context:
            job_id = context.get(context.run(launch, gate))
        gate.open()
        info = create_cluster("local").wait(job_id, timeout=60)
        assert (info.status, info.error_message) == ("succeeded", None)

    def test_it_ends_with_a_worker_that_is_killed(self, context: JobContext) -> None:
        worker, pid = context.get([context.run(os.getpid), context.run(start_sleeper)])
        os.kill(worker, 9)
        until(lambda: not alive(pid), "what the dead worker started has ended")


class TestTheNextTask:
    def test_starts_in_the_directory_of_the_worker(self, context: JobContext, tmp_path: Path) -> None:
        before = context.get(context.run(os.getcwd))
        context.get(context.run(os.chdir, tmp_path))
        assert context.get(context.run(os.getcwd)) == before

    def test_starts_with_the_environment_of_the_worker(
        self, context: JobContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FRAY_TEST_GIVEN", "1")

        def change() -> None:
            os.environ["FRAY_TEST_LEFT"] = "here"
            os.environ["FRAY_TEST_GIVEN"] = "2"
            del os.environ["HOME"]

        def look() -> tuple[str | None, str | None, bool, int]:
            names = ("FRAY_TEST_LEFT", "FRAY_TEST_GIVEN")
            left, given = map(os.environ.get, names)
            return left, given, "HOME" in os.environ, os.getpid()

        _, _, home, worker = context.get(context.run(look))
        context.get(context.run(change))
        assert context.get(context.run(look)) == (None, "1", home, worker)

    def test_an_actor_keeps_what_it_changed(self, context: JobContext, tmp_path: Path) -> None:
        class Mover:
            def move(self, path: Path) -> None:
                os.chdir(path)
                os.environ["FRAY_TEST_LEFT"] = "here"

            def look(self) -> tuple[str, str | None]:
                return os.fspath(Path.cwd()), os.environ.get("FRAY_TEST_LEFT")

        mover = context.create_actor(Mover)
        context.get(mover.move(tmp_path))
        assert context.get(mover.look()) == (os.fspath(tmp_path), "here")


class TestWhatAWorkerIsGiven:
    def test_a_path_among_the_import_paths(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "module_beside_a_path.py").write_text("VALUE = 7\n")
        monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])

        def read() -> int:
            import module_beside_a_path  # type: ignore[import-not-found]

            return int(module_beside_a_path.VALUE)

        with create_context("process", max_workers=1) as context:
            assert context.get(context.run(abs, -1)) == 1
            assert context.get(context.run(read)) == 7

    def test_an_infinite_timeout(self, context: JobContext) -> None:
        forever = float("inf")
        ref = context.run(abs, -1)
        assert context.get(ref, timeout=forever) == 1
        assert context.wait([ref], timeout=forever) == ([ref], [])

        def inside() -> int:
            from fray.job import get_job_context

            mine = get_job_context()
            other = mine.run(abs, -2)
            mine.wait([other], timeout=forever)
            return int(mine.get(other, timeout=forever))

        assert context.get(context.run(inside)) == 2

    def test_the_modules_that_it_is_to_find_imported(self) -> None:
        def imported() -> bool:
            return "decimal" in sys.modules

        with create_context("process?preload=decimal,csv", max_workers=1) as context:
            assert context.get(context.run(imported))
        with create_context("process", max_workers=1) as context:
            assert not context.get(context.run(imported))
        with pytest.raises(ValueError, match="preload names modules"):
            create_context("process?preload=no-module")

    def test_portable_options(self, tmp_path: Path) -> None:
        def die_once() -> str:
            if not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os.kill(os.getpid(), 9)
            return "alive"

        with create_context("process", num_cpus=2, memory="1g", max_retries=1) as context:
            assert context.get(context.run(die_once)) == "alive"
            with pytest.raises(UnsupportedError, match="memory"):
                context.create_task(abs, 1, options=TaskOptions(resources={"memory": 2 << 30}))
