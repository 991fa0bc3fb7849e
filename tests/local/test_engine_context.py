"""A context over a remote engine: the contract on one in memory, and what follows from its primitives."""

import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from memory_engine import MemoryContext, MemoryEngine, TaskOnlyContext

from fray import UnsupportedError, create_context
from fray.backend import EngineContext, capabilities_of, sessions
from fray.testing import tasks
from fray.testing.context import ContextContract
from fray.testing.installation import forget_plugins

ENTRY_POINTS = """[fray.contexts]
memory-engine = memory_engine:MemoryContext
task-engine = memory_engine:TaskOnlyContext
"""


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Register the engine's context as an installed distribution would."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "memory_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: memory-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    sys.path.insert(0, str(folder))
    forget_plugins()
    yield
    sys.path.remove(str(folder))
    forget_plugins()


class _Engine(ContextContract):
    CHAIN = 200
    DEPTH = 50
    PROGRAMS = 10


class TestMemoryEngine(_Engine):
    @pytest.fixture
    def spec(self) -> str:
        return "memory-engine"


class TestTaskEngine(_Engine):
    """An engine that has no more than it must: what it cannot do is refused, and the rest is kept."""

    @pytest.fixture
    def spec(self) -> str:
        return "task-engine"


def test_an_engine_that_runs_tasks_alone_declares_and_refuses_the_rest() -> None:
    can = TaskOnlyContext.capabilities
    assert not any([can.streams, can.actors, can.named_actors, can.nested_tasks, can.at_most_once])
    with TaskOnlyContext() as context:
        total = context.run(tasks.add, context.run(tasks.add, 1), 10)
        assert context.get(total) == 12
        with pytest.raises(ValueError, match="no luck"):
            context.get(context.run(tasks.fail, "no luck"))
        with pytest.raises(UnsupportedError, match="an actor is not supported"):
            context.create_actor(tasks.Counter)
        with pytest.raises(UnsupportedError, match="a generator function as a task"):
            context.run(tasks.numbers, 3)


class Unclaimed(MemoryEngine):
    """An engine whose workers may die, and where nobody can tell a first run from a second."""

    processes = True
    claim = property()  # as if it had none


def test_retries_that_the_engine_cannot_keep_apart_are_refused_by_run_and_create_task() -> None:
    assert not capabilities_of(Unclaimed()).retries
    with EngineContext(Unclaimed(), max_retries=1) as context:
        with pytest.raises(UnsupportedError, match="max_retries"):
            context.run(tasks.add, 1)
        with pytest.raises(UnsupportedError, match="max_retries"):
            context.create_task(tasks.add, 1)


def test_every_primitive_adds_what_it_is_for() -> None:
    can = MemoryContext.capabilities
    assert all([can.streams, can.actors, can.async_actors, can.detached_actors, can.at_most_once])
    assert not any([can.isolation, can.retries, can.shared_actors]), "its workers are no processes"


def test_a_session_is_forgotten_in_the_workers_when_its_context_ends() -> None:
    before = sessions()
    with create_context("memory-engine") as context:
        counter = context.create_actor(tasks.Counter)
        assert context.get(counter.increment()) == 1
        assert len(sessions()) == len(before) + 1
    assert sessions() == before


def test_a_value_of_a_living_reference_can_be_read_after_shutdown() -> None:
    with create_context("memory-engine") as context:
        refs = [context.put(1), context.run(tasks.add, 1), context.run(tasks.fail, "still known")]
        context.wait(refs, num_returns=3)
    assert [context.get(ref) for ref in refs[:2]] == [1, 2]
    with pytest.raises(ValueError, match="still known"):
        context.get(refs[2])


def test_references_inside_results_and_arguments_find_their_values() -> None:
    def makes_references(count: int) -> list[object]:
        context = create_context("auto")
        return [context.put(0), *(context.run(tasks.add, number) for number in range(count))]

    with create_context("memory-engine") as context:
        inside = context.get(context.run(makes_references, 3))
        assert context.get(inside) == [0, 1, 2, 3]


def test_what_the_workers_submitted_is_waited_for(tmp_path: Path) -> None:
    def leaves_work() -> None:
        from fray import get_job_context

        context = get_job_context()
        context.run((tmp_path / "first").touch)
        context.create_actor(tasks.Counter).increment()
        context.run((tmp_path / "second").touch)

    with create_context("memory-engine") as context:
        context.run(leaves_work)
    assert (tmp_path / "first").exists()
    assert (tmp_path / "second").exists()


class LeavingEngine(MemoryEngine):
    """An engine whose scheduler may go."""

    gone = closed = False

    def workers(self) -> Mapping[str, float]:
        if self.gone:
            raise ConnectionError("the scheduler is gone")
        return super().workers()

    def close(self) -> None:
        self.closed = True


def test_an_engine_that_is_gone_at_the_end_is_named_and_the_context_has_ended() -> None:
    engine = LeavingEngine()
    context = EngineContext(engine)
    ref, actor = context.run(tasks.add, 1), context.create_actor(tasks.Counter)
    assert context.get([ref, actor.increment()], timeout=60) == [2, 1]
    engine.gone = True
    with pytest.raises(ConnectionError, match="the scheduler is gone"):
        context.shutdown()
    assert engine.closed
    assert context.get(ref) == 2
    with pytest.raises(RuntimeError, match="shut down"):
        context.run(tasks.add, 1)
    context.shutdown()


def _unreadable() -> None:
    raise ModuleNotFoundError("this worker has no such module")


class Unreadable:
    """What no worker can unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unreadable, ()


def test_an_argument_that_a_worker_cannot_unpickle_fails_a_stream_as_it_fails_a_task() -> None:
    argument: Any = Unreadable()
    with create_context("memory-engine") as context:
        with pytest.raises(ModuleNotFoundError, match="no such module"):
            context.get(context.run(tasks.add, argument))
        with pytest.raises(ModuleNotFoundError, match="no such module"):
            context.get(next(context.run(tasks.numbers, argument)))


class FrozenEngine(MemoryEngine):
    """An engine whose workers do not say whether they live, until they are released."""

    def __init__(self) -> None:
        self.pings: dict[Future[bytes], bytes] = {}
        self.asked, self.released = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryEngine, ()

    def ask(self, worker: str, request: bytes) -> "Future[bytes]":
        if pickle.loads(request)[1] != "ping" or self.released.is_set():
            return super().ask(worker, request)
        held: Future[bytes] = Future()
        self.pings[held] = request
        self.asked.set()
        return held

    def release_workers(self) -> None:
        self.released.set()
        for held in self.pings:
            held.set_result(b"")


def test_a_stream_that_waits_for_a_worker_keeps_no_task_waiting() -> None:
    engine = FrozenEngine()
    with EngineContext(engine) as context:
        stream = context.run(tasks.numbers, context.run(tasks.add, 1))
        assert engine.asked.wait(60)
        assert context.get(context.run(tasks.add, 2), timeout=60) == 3
        engine.release_workers()
        assert [context.get(item) for item in stream] == [0, 1]
