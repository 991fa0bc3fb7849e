"""What a context does where the system refuses: no file can be opened, none written, no process made."""

import contextlib
import errno
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from descriptors import few_descriptors

from fray import (
    ActorDiedError,
    JobContext,
    RuntimeEnv,
    TaskOptions,
    WorkerDiedError,
    create_context,
    get_job_context,
)
from fray.backend import dispatch
from fray.testing.gates import Gate
from fray.testing.tasks import Counter


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


def large(size: int = 1_000_000) -> bytes:
    return bytes(size)


class Mortal:
    def pid(self) -> int:
        return os.getpid()

    def hold(self, seconds: float) -> None:
        time.sleep(seconds)


class TestDescriptors:
    def test_a_stream_that_outlives_its_context_writes_into_no_file(self, tmp_path: Path) -> None:
        def count() -> Iterator[int]:
            yield from range(1000)

        with create_context("process", max_workers=1) as context:
            stream = context.run(count)
            assert context.get(next(stream)) == 0
        with contextlib.ExitStack() as files:  # of which one has the number of what the context used
            for index in range(40):
                files.enter_context((tmp_path / str(index)).open("wb"))
            del stream
            gc.collect()
        assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == []

    def test_a_task_whose_worker_cannot_be_started_fails_and_the_others_go_on(
        self, context: JobContext, tmp_path: Path
    ) -> None:
        gate, there = Gate(tmp_path / "gate"), [Gate(tmp_path / name) for name in "ab"]

        def hold(here: Gate) -> str:
            here.open()
            gate.wait()
            return "held"

        busy = [context.run(hold, here) for here in there]
        for here in there:
            here.wait()
        elsewhere = TaskOptions(runtime_env=RuntimeEnv(env={"OTHER": "1"}))
        waiting, refused = context.run(abs, -1), context.create_task(abs, -2, options=elsewhere)
        with few_descriptors():
            gate.open()
            assert context.get([*busy, waiting], timeout=30) == ["held", "held", 1]
            with pytest.raises(WorkerDiedError, match=r"abs\(\) could not be started: .*open files"):
                context.get(refused, timeout=30)
        later = context.create_task(large, 3, options=elsewhere)
        assert context.get(later, timeout=30) == bytes(3)

    @pytest.mark.timeout(60)
    def test_a_task_that_the_system_does_not_let_pass_runs_in_another_worker(
        self, context: JobContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where too many descriptors are under way between the processes of one user."""

        real, refused = socket.socket.sendmsg, threading.Event()

        def refuse_once(*message: Any) -> int:
            if refused.is_set():
                return real(*message)
            refused.set()
            raise OSError(errno.ETOOMANYREFS, "Too many references")

        context.get([context.run(abs, -1), context.run(abs, -1)])
        monkeypatch.setattr(socket.socket, "sendmsg", refuse_once)
        assert context.get(context.run(len, bytes(1_000_000)), timeout=30) == 1_000_000
        assert refused.is_set()

    @pytest.mark.timeout(60)
    def test_a_task_whose_workers_end_before_they_run_it_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where the user's limit on threads is reached: the fork works, and the worker ends."""
        (tmp_path / "sitecustomize.py").write_text(
            "import os\nos.register_at_fork(after_in_child=lambda: os._exit(7))\n"
        )
        monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
        told = r"a worker process for abs\(\) could not be started: .* exit code 7"
        with create_context("process", max_workers=1) as context, pytest.raises(WorkerDiedError, match=told):
            context.get(context.run(abs, -1))

    def test_an_actor_whose_process_cannot_be_started_is_dead(self, context: JobContext) -> None:
        assert context.get(context.run(abs, -1)) == 1
        with few_descriptors():
            counter = context.create_actor(Counter)
            with pytest.raises(ActorDiedError, match=r"process could not be started: .*open files"):
                context.get(counter.value(), timeout=30)

    def test_a_shared_actor_that_dies_meanwhile_is_dead(self) -> None:
        with create_context("process", namespace="team") as context:
            counter = context.create_actor(Mortal, name="mortal")
            pid, held = context.get(counter.pid()), counter.hold(600)
            with few_descriptors(0):
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(ActorDiedError, match="SIGKILL"):
                    context.get(held, timeout=30)
            assert context.get(context.create_actor(Counter, 2, name="mortal").value(), timeout=30) == 2

    def test_the_name_of_a_shared_actor_is_free_once_its_death_is_known(self) -> None:
        killed, known = threading.Event(), threading.Event()

        def pause(frame: FrameType, event: str, _argument: object) -> None:
            """The thread that learns of the death is slow from there on."""
            if frame.f_code is dispatch.__code__ and killed.is_set():
                known.wait(20)

        threading.settrace(pause)
        try:
            with create_context("process", namespace="team") as context:
                mortal = context.create_actor(Mortal, name="mortal")
                pid, held = context.get(mortal.pid()), mortal.hold(600)
                with few_descriptors(0):  # its record cannot be removed
                    killed.set()
                    os.kill(pid, signal.SIGKILL)
                    with pytest.raises(ActorDiedError):
                        context.get(held, timeout=10)
                counter = context.create_actor(Counter, 2, name="mortal")
                known.set()
                assert context.get(counter.value(), timeout=30) == 2
        finally:
            known.set()
            threading.settrace(None)

    def test_a_value_for_which_there_is_none_is_refused_with_what_to_do(self, context: JobContext) -> None:
        with few_descriptors(0):
            with pytest.raises(OSError, match=r"out of file descriptors.*ulimit -n") as refused:
                context.put(large())
            assert refused.value.errno == errno.EMFILE
        assert context.get(context.put(large())) == large()

    def test_results_for_which_there_are_none_fail_and_say_what_to_do(self, context: JobContext) -> None:
        assert context.get(context.run(abs, -1)) == 1
        said = []
        with few_descriptors(10):
            kept = [context.run(large, 100_000) for _ in range(40)]
            _, pending = context.wait(kept, num_returns=len(kept), timeout=30)
            assert not pending
        for ref in kept:
            try:
                assert len(context.get(ref)) == 100_000
            except WorkerDiedError as error:
                said.append(str(error))
        assert any("out of file descriptors" in one and "ulimit -n" in one for one in said), said
        del kept, ref, _
        assert len(context.get(context.run(large, 100_000), timeout=30)) == 100_000


def store_without_threads(count: int) -> list[int]:
    context = get_job_context()
    before = threading.stack_size(1 << 50)  # of each thread to come: none can be started
    try:
        return context.get([context.put(number) for number in range(count)], timeout=30)
    finally:
        threading.stack_size(before)


def test_a_worker_that_can_start_no_thread_sends_at_once(context: JobContext) -> None:
    assert context.get(context.run(store_without_threads, 100), timeout=60) == list(range(100))


def little_memory() -> None:
    """Let this process have as much memory as it has, and a little more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 20_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit the address space")
def test_a_worker_that_has_no_memory_for_a_function_does_not_keep_it_waiting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = bytes(80_000_000)
    with create_context("process", max_workers=1) as context:
        context.get(context.run(little_memory))
        assert context.get(context.run(lambda: len(data)), timeout=30) == len(data)  # on another worker
    assert "fray: a message could not be sent or read: MemoryError" in capsys.readouterr().err


class TestSpilling:
    def test_a_directory_that_is_not_there_is_refused_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"spill_dir must be .*missing' is no directory"):
            create_context("process", spill_dir=os.fspath(tmp_path / "missing"))

    def test_a_result_that_cannot_be_kept_fails_its_task(self, tmp_path: Path) -> None:
        spill = tmp_path / "spill"
        spill.mkdir()
        with create_context("process", object_store_memory=100_000, spill_dir=os.fspath(spill)) as context:
            spill.rmdir()
            with pytest.raises(FileNotFoundError, match="spill"):
                context.get(context.run(large), timeout=30)
            assert context.get(context.run(abs, -1), timeout=30) == 1
