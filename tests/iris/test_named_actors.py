"""The jobs of named actors, as a controller gets them: their names, their variables, and their ends."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from actor_servers import ActorServers
from fake_controller import Code, ConnectError, FakeController

from fray import (
    ActorAlreadyExistsError,
    ClusterUnavailableError,
    ContextClosedError,
    SerializationError,
    UnsupportedError,
    create_cluster,
    create_context,
    get_job_context,
)
from fray.cluster import Entrypoint, EnvironmentConfig, JobRequest
from fray.job import ActorOptions, ObjectStream
from fray.testing.cluster import until

SPEC = "iris?controller=http://nowhere&user=ada&tasks=threadpool&shared_files=true&namespace=here"
PATIENCE = 60.0


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def add(self, number: int) -> int:
        self.calls += number
        return self.calls


def living(controller: FakeController) -> list[str]:
    return [name for name, job in controller.jobs.items() if job.state == "JOB_STATE_RUNNING"]


@pytest.mark.parametrize("get_if_exists", [True, False])
def test_two_that_make_one_actor_at_the_same_time_have_one(
    controller: FakeController, get_if_exists: bool
) -> None:
    others: list[str] = []

    def another_is_faster(method: str, request: Any) -> None:
        if method == "list_jobs" and not others:
            others.append(f"{request.query.job_id_prefix}1")
            controller.add(others[0])

    controller.after = another_is_faster
    with create_context(SPEC) as context:
        if get_if_exists:
            context.create_actor(Counter, name="one", get_if_exists=True)
        else:
            with pytest.raises(ActorAlreadyExistsError):
                context.create_actor(Counter, name="one")
        assert living(controller) == others


def refuse_to_end(name: str) -> Any:
    def refuse(method: str, request: Any) -> None:
        if method == "terminate_job" and name in request.job_id:
            raise ConnectError(Code.PERMISSION_DENIED, "not yours")

    return refuse


def test_an_actor_that_cannot_be_ended_keeps_no_other_and_nothing_open(controller: FakeController) -> None:
    context = create_context(SPEC)
    for name in ("first", "second", "third"):
        context.create_actor(Counter, name=name)
    controller.before = refuse_to_end("-first-")
    with pytest.raises(ClusterUnavailableError, match="not yours"):
        context.shutdown()
    assert [name.partition("-")[2].partition("-")[0] for name in living(controller)] == ["first"]
    with pytest.raises(ContextClosedError):
        context.run(len, "abc")


def test_the_exception_of_a_program_is_not_hidden_by_the_end_of_its_actors(
    controller: FakeController,
) -> None:
    def fail() -> None:
        with create_context(SPEC) as context:
            context.create_actor(Counter, name="first")
            controller.before = refuse_to_end("-first-")
            raise ValueError("the program's own")

    with pytest.raises(ValueError, match="the program's own") as raised:
        fail()
    assert "not yours" in str(raised.value.__notes__)


def is_closed(context: Any) -> bool:
    """Return whether a context takes no more tasks of its program, which is no task of its."""
    with ThreadPoolExecutor(1) as program:
        return isinstance(program.submit(context.run, len, "abc").exception(), ContextClosedError)


@pytest.mark.timeout(120)
def test_the_end_of_a_context_waits_for_tasks_that_use_its_actors(
    controller: FakeController, servers: ActorServers
) -> None:
    started = threading.Event()

    def task() -> int:
        here = get_job_context()
        started.set()
        until(lambda: servers.ended.is_set() or is_closed(context), "the block has ended")
        counter = here.get_actor("counted")
        counter.count()  # is waited for, although nobody asks for what it gives
        return int(here.get(counter.count()))

    with create_context(SPEC) as context:
        context.create_actor(Counter, name="counted")
        ref = context.run(task)
        assert started.wait(PATIENCE)
    assert context.get(ref) == 2
    assert not living(controller)


def test_an_actor_that_iris_has_removed_has_ended(controller: FakeController) -> None:
    with create_context(SPEC) as context:
        context.create_actor(Counter, name="first")
        controller.jobs.clear()
        controller.tasks.clear()


def test_an_actor_has_the_token_of_its_maker(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_context(SPEC) as context:
        context.create_actor(Counter, name="without")
        monkeypatch.setenv("IRIS_TOKEN", "hunter2")
        context.create_actor(Counter, name="with")
        without, with_token = (each.environment.env_vars for each in controller.requests.values())
    assert "IRIS_TOKEN" not in without
    assert with_token["IRIS_TOKEN"] == "hunter2"
    (requested,) = (each for name, each in controller.requests.items() if "-with-" in name)
    requested.pop("environment")
    assert "hunter2" not in json.dumps(requested, default=repr)


def test_the_actor_of_a_job_has_the_environment_of_the_job(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    given = {"GREETING": "hello", "UV_INDEX": "https://example.org"}
    environment = EnvironmentConfig(
        pip_packages=["einops>=0.8"], extras=["gpu"], env_vars=given, python=python, docker_image="own:1"
    )
    cluster = create_cluster("iris", controller="http://nowhere", user="ada", shared_files=True)
    job_id = cluster.launch(JobRequest("train", Entrypoint.from_binary("true"), environment=environment))
    requested = controller.requests.pop(f"/ada/{job_id}")
    for name, data in requested.entrypoint.workdir_files.items():
        (tmp_path / name).write_bytes(data)
    for name, value in {"FRAY_JOB_ID": job_id, "IRIS_WORKDIR": str(tmp_path), **given}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GREETING", "hello again")  # by the program
    with create_context(SPEC) as context:
        context.create_actor(Counter, name="same")
        options = ActorOptions(name="other-image", backend={"iris": {"task_image": "own:2"}})
        context.create_actor(Counter, options=options)
    same, other = controller.requests.values()
    assert same.environment.pip_packages == ["einops>=0.8"]
    assert same.environment.extras == ["gpu"]
    assert same.environment.python_version == python
    assert json.loads(same.environment.env_vars["FRAY_SECRET_0"]) == {"GREETING": "hello again"}
    assert same.environment.env_vars["UV_INDEX"] == "https://example.org"
    assert (same.task_image, other.task_image) == ("own:1", "own:2")


def test_a_job_of_another_cluster_is_no_job_of_this_one(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = create_cluster("iris", controller="http://nowhere", user="ada")
    assert cluster.own_job() is None
    monkeypatch.setenv("FRAY_JOB_ID", "local-job-1a2b3c")
    assert cluster.own_job() is None
    controller.add("/ada/local-job-1a2b3c")
    assert cluster.own_job() == "/ada/local-job-1a2b3c"


def test_what_an_actor_reserves_is_asked_of_iris_or_refused(controller: FakeController) -> None:
    with create_context(SPEC) as context:

        def make(**options: Any) -> None:
            context.create_actor(Counter, options=ActorOptions(name="one", **options))

        with pytest.raises(UnsupportedError, match=r"actor 'one' asks for 0\.5 GPUs"):
            make(resources={"GPU": 0.5})
        with pytest.raises(UnsupportedError, match="'one' cannot reserve licence on Iris: it has CPU, GPU,"):
            make(resources={"licence": 1})
        assert not controller.requests
        backend = {"iris": {"priority_band": "production"}, "ray": {"num_gpus": 1}}
        make(resources={"GPU": 1}, backend=backend)
        (requested,) = controller.requests.values()
    assert requested.resources.device.gpu["count"] == 1
    assert requested.priority_band == "PRIORITY_BAND_PRODUCTION"


def found_by_name() -> int:
    here = get_job_context()
    return int(here.get(here.get_actor("found").count()))


class Finder:
    """Finds a named actor, in every way in which a method may run."""

    def find(self) -> int:
        return found_by_name()

    def stream(self) -> Iterator[int]:
        try:
            for _ in range(2):
                yield found_by_name()
        finally:
            found_by_name()

    @staticmethod
    async def wait_and_find() -> int:
        await asyncio.sleep(0)
        return found_by_name()

    @staticmethod
    async def stream_later() -> AsyncIterator[int]:
        for _ in range(2):
            await asyncio.sleep(0)
            yield found_by_name()


class AsyncFinder(Finder):
    """Does so on an event loop, with whose calls those of the named actor may wait beside it."""

    async def find(self) -> int:  # type: ignore[override]
        return await asyncio.to_thread(found_by_name)


CALLABLES: dict[str, Callable[..., Any]] = {
    "a function": found_by_name,
    "a partial": partial(lambda number: number and found_by_name(), 1),
    "a bound method": Finder().find,
    "a callable object": type("Called", (), {"__call__": Finder.find})(),
    "a coroutine": Finder.wait_and_find,
    "a generator": Finder().stream,
    "an async generator": Finder.stream_later,
}


def values(context: Any, ref: Any) -> list[int]:
    """Return what a task, or a stream, gives."""
    if isinstance(ref, ObjectStream):
        return [context.get(item, timeout=PATIENCE) for item in ref]
    return [context.get(ref, timeout=PATIENCE)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", CALLABLES)
def test_a_task_of_any_kind_finds_a_named_actor(
    kind: str, controller: FakeController, servers: ActorServers
) -> None:
    with create_context(SPEC) as context:
        context.create_actor(Counter, name="found")
        found = values(context, context.run(CALLABLES[kind]))
        assert found == list(range(1, len(found) + 1))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cls", [Finder, AsyncFinder])
@pytest.mark.parametrize("name", [None, "finder"])
def test_a_method_of_an_actor_finds_a_named_actor(
    cls: type[Finder], name: str | None, controller: FakeController, servers: ActorServers
) -> None:
    with create_context(SPEC) as context:
        context.create_actor(Counter, name="found")
        finder = context.create_actor(cls, name=name)
        assert values(context, finder.find()) == [1]
        assert values(context, finder.stream()) == [2, 3]
        assert values(context, finder.wait_and_find()) == [5]  # the end of the stream was one, too
        assert values(context, finder.stream_later()) == [6, 7]


def kind_here() -> str:
    return type(get_job_context()).__name__


def test_a_worker_process_has_the_context_for_every_callable_as_well(controller: FakeController) -> None:
    class Asked:
        def ask(self) -> Any:
            return kind_here()

        def stream(self) -> Iterator[Any]:
            yield kind_here()

        async def wait(self) -> Any:
            return kind_here()

    class Plain:
        def ask(self) -> Any:
            return kind_here()

    with create_context(SPEC, tasks="process", max_workers=1) as context:
        asked, plain = context.create_actor(Asked), context.create_actor(Plain)
        tasks: list[Any] = [partial(kind_here), Asked().ask, Asked().stream, Asked().wait]
        run: Any = context.run
        refs: list[Any] = [*map(run, tasks), asked.ask(), asked.stream(), asked.wait(), plain.ask()]
        found: list[Any] = [values(context, ref) for ref in refs]
        assert found == [["IrisContext"]] * len(refs)


def count_in(counter: Any) -> int:
    return int(get_job_context().get(counter.count()))


@pytest.mark.parametrize("fn", [len, count_in, partial(count_in)], ids=["builtin", "function", "partial"])
def test_an_argument_that_cannot_travel_is_named(controller: FakeController, fn: Callable[..., Any]) -> None:
    named = pytest.raises(SerializationError, match=r"argument 1 \(.*\) of (len|count_in)\(\)")
    with create_context(SPEC, tasks="process", max_workers=1) as context, named:
        context.run(fn, threading.Lock())


def count_in_another(counter: Any) -> list[Any]:
    """Be a task that ends before the task that it started, on whose value a call of its waits."""
    return [counter.add(get_job_context().run(count_in, counter))]


@pytest.mark.timeout(120)
def test_a_call_may_wait_for_a_task_that_calls_the_same_actor(
    controller: FakeController, servers: ActorServers
) -> None:
    with create_context(SPEC, max_workers=1) as context:
        counter = context.create_actor(Counter, name="counted")
        ref = counter.add(context.run(count_in, counter))
        assert context.get(ref, timeout=PATIENCE) == 2
        (ref,) = context.get(context.run(count_in_another, counter), timeout=PATIENCE)
        assert context.get(ref, timeout=PATIENCE) == 6
