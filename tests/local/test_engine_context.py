"""A context over a remote engine: the contract on one in memory, and what follows from its primitives."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

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
