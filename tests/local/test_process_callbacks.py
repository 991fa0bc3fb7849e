"""What a context calls back, or unpickles, may use the context, and may fail, without harm to it."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fray import ActorDiedError, JobContext, create_context, get_job_context
from fray.testing.gates import Gate


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


class Broken:
    """Arrives nowhere: unpickling it ends as if a file had."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _end_of_file, ()


def _end_of_file() -> None:
    raise EOFError("nothing can be made of it")


def chained(context: JobContext) -> int:
    """Let the callback of a future run a task and wait for it."""
    results: list[int] = []
    done = threading.Event()

    def go_on(future: Any) -> None:
        results.append(context.get(context.run(abs, -10 * future.result()), timeout=20))
        done.set()

    context.as_executor().submit(abs, -1).add_done_callback(go_on)
    assert done.wait(30)
    return results[0]


def chained_here() -> int:
    return chained(get_job_context())


def meet_a_broken_value() -> tuple[str, int]:
    context = get_job_context()
    future = context.as_executor().submit(Broken)
    try:
        found = repr(future.result(timeout=20))
    except EOFError as error:
        found = str(error)
    return found, context.get(context.run(abs, -1), timeout=20)


def test_a_callback_uses_the_context(context: JobContext) -> None:
    assert chained(context) == 10
    assert context.get(context.run(abs, -2), timeout=30) == 2


def test_so_does_one_in_a_worker(context: JobContext) -> None:
    assert context.get(context.run(chained_here), timeout=60) == 10


def test_a_value_that_cannot_be_unpickled_in_a_worker_is_the_futures_error(context: JobContext) -> None:
    assert context.get(context.run(meet_a_broken_value), timeout=60) == ("nothing can be made of it", 1)


class Slow(Exception):
    """Takes as long in one process, to be loaded or to be packed, as a gate stays closed."""

    def __init__(self, pid: int, folder: str) -> None:
        super().__init__(pid, folder)

    def __reduce__(self) -> tuple[Any, ...]:
        wait_in(*self.args)
        return load_slowly, self.args


def wait_in(pid: int, folder: str) -> None:
    if os.getpid() == pid:
        Gate(Path(folder) / "started").open()
        Gate(Path(folder) / "gate").wait()


def load_slowly(*args: Any) -> Slow:
    wait_in(*args)
    return Slow(*args)


class Failing:
    def __init__(self, pid: int, folder: str) -> None:
        raise Slow(pid, folder)

    def answer(self) -> None: ...


def ask(failing: Any) -> str:
    try:
        get_job_context().get(failing.answer())
    except ActorDiedError as error:
        return type(error.__cause__).__name__
    return "it lives"


class TestOtherTasks:
    """They are answered while a program's own code runs."""

    def test_that_of_an_exception_of_an_actors_constructor(self, context: JobContext, tmp_path: Path) -> None:
        started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
        try:
            asking = context.run(ask, context.create_actor(Failing, os.getpid(), os.fspath(tmp_path)))
            started.wait()
            assert context.get(context.run(abs, -1), timeout=50) == 1
        finally:
            gate.open()
        assert context.get(asking, timeout=60) == "Slow"

    def test_that_of_the_value_of_a_future(self, context: JobContext, tmp_path: Path) -> None:
        started, gate, other = (Gate(tmp_path / name) for name in ("started", "gate", "other"))
        future: Future[Any] = Future()
        kind = context.run(lambda value, _: type(value).__name__, future, context.run(other.wait))
        setter = threading.Thread(target=future.set_result, args=[Slow(os.getpid(), os.fspath(tmp_path))])
        try:
            setter.start()
            other.open()
            started.wait()
            assert context.get(context.run(abs, -1), timeout=50) == 1
        finally:
            gate.open()
        assert context.get(kind, timeout=60) == "Slow"
        setter.join()
