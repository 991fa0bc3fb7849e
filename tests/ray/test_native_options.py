"""Ray's own options, for contexts, tasks, actors and calls; the names by which Ray's state knows them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray

from fray import ActorDiedError, ActorOptions, JobContext, TaskOptions, create_context
from fray.testing.gates import until
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


@dataclass
class Unhashable:
    """A plain dataclass has no hash, and its methods have one."""

    number: int

    def where(self) -> int:
        return os.getpid()

    def __call__(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("bound", [True, False])
def test_what_is_counted_for_max_calls_needs_no_hash(context: JobContext, bound: bool) -> None:
    counted: Any = Unhashable(1).where if bound else Unhashable(1)
    options = TaskOptions(max_calls=1)
    pids = [context.get(context.create_task(counted, options=options), timeout=60) for _ in range(2)]
    assert len(set(pids)) == 2


def test_a_worker_is_replaced_after_max_calls(context: JobContext) -> None:
    options = TaskOptions(max_calls=1)
    pids = [context.get(context.create_task(os.getpid, options=options)) for _ in range(3)]
    assert len(set(pids)) == 3


def test_a_label_selector_chooses_the_node_of_every_task(ray_cluster: LocalRayCluster) -> None:
    def node() -> str:
        return str(ray.get_runtime_context().get_node_id())

    for wanted in ray_cluster.node_ids():
        selector = {"ray.io/node-id": wanted}
        with create_context("ray", address=ray_cluster.address, label_selector=selector) as context:
            assert context.get(context.run(node)) == wanted


def test_a_task_with_several_results_has_a_reference_for_each(context: JobContext) -> None:
    options = TaskOptions(backend={"ray": {"num_returns": 2}})
    quotient, rest = context.create_task(divmod, 7, 2, options=options)
    assert context.get([quotient, rest]) == [3, 1]


def test_a_task_without_results_has_no_reference_and_disturbs_no_other(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    options = TaskOptions(backend={"ray": {"num_returns": 0}})
    marks = [tmp_path / "first", tmp_path / "second"]
    with create_context(f"ray?address={ray_cluster.address}") as context:
        # The second call takes the short way into Ray.
        assert [context.create_task(mark.touch, options=options) for mark in marks] == [None, None]
        until(lambda: all(mark.exists() for mark in marks), "both have run")
        assert context.get(context.run(abs, -1)) == 1


def test_rays_own_options_choose_the_node_and_retry_exceptions(
    ray_cluster: LocalRayCluster, context: JobContext, tmp_path: Path
) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    head = ray.get_runtime_context().get_node_id()
    there = NodeAffinitySchedulingStrategy(node_id=head, soft=False)
    options = TaskOptions(backend={"ray": {"scheduling_strategy": there}})
    node = context.create_task(lambda: ray.get_runtime_context().get_node_id(), options=options)
    assert context.get(node) == head

    diary = tmp_path / "diary"

    def succeed_at_last() -> int:
        with diary.open("a") as file:
            file.write("x")
        if diary.stat().st_size < 3:
            raise OSError("not yet")
        return diary.stat().st_size

    options = TaskOptions(backend={"ray": {"retry_exceptions": [OSError], "max_retries": 5}})
    assert context.get(context.create_task(succeed_at_last, options=options)) == 3


def test_rays_label_selector_is_an_option_of_one_task(
    ray_cluster: LocalRayCluster, context: JobContext
) -> None:
    for wanted in ray_cluster.node_ids():
        options = TaskOptions(backend={"ray": {"label_selector": {"ray.io/node-id": wanted}}})
        node = context.create_task(lambda: ray.get_runtime_context().get_node_id(), options=options)
        assert context.get(node) == wanted


class Fragile:
    def die_at_first(self, diary: Path) -> int:
        with diary.open("a") as file:
            file.write("x")
        if diary.stat().st_size == 1:
            os._exit(1)
        return diary.stat().st_size


def test_max_task_retries_makes_calls_again_on_an_actor_that_was_restarted(
    context: JobContext, tmp_path: Path
) -> None:
    options = ActorOptions(max_restarts=1, backend={"ray": {"max_task_retries": -1}})
    actor = context.create_actor(Fragile, options=options)
    assert context.get(actor.die_at_first(tmp_path / "of the actor"), timeout=200) == 2

    actor = context.create_actor(Fragile, options=ActorOptions(max_restarts=3))
    once = actor.die_at_first.options(max_task_retries=-1).remote(tmp_path / "of the call")
    assert context.get(once, timeout=200) == 2
    with pytest.raises(ActorDiedError):
        context.get(actor.die_at_first(tmp_path / "never"), timeout=200)


class Grouped:
    def wait_for(self, path: str) -> str:
        until(Path(path).exists, path)
        return path

    def ping(self) -> str:
        return "pong"


def test_concurrency_groups_let_calls_of_one_pass_those_of_another(
    context: JobContext, tmp_path: Path
) -> None:
    options = ActorOptions(backend={"ray": {"concurrency_groups": {"io": 1}}})
    actor = context.create_actor(Grouped, options=options)
    slow = actor.wait_for(str(tmp_path / "mark"))
    assert context.get(actor.ping.options(concurrency_group="io").remote(), timeout=200) == "pong"
    (tmp_path / "mark").touch()
    context.get(slow)


def test_rays_state_names_the_function_of_the_user(ray_cluster: LocalRayCluster, context: JobContext) -> None:
    from ray.util.state import list_tasks

    def with_a_name_of_its_own() -> None: ...

    context.get(context.run(with_a_name_of_its_own))
    its_name: Any = [("name", "=", with_a_name_of_its_own.__qualname__)]
    where: Any = {"address": ray_cluster.dashboard, "timeout": 200, "raise_on_missing_output": False}
    found = until(lambda: list_tasks(filters=its_name, **where), "the task in Ray's table")
    assert found[0].func_or_class_name == "with_a_name_of_its_own"  # as Ray's warnings call it


def test_rays_state_names_the_class_of_the_user_and_its_methods(
    ray_cluster: LocalRayCluster, context: JobContext
) -> None:
    from ray.util.state import list_actors, list_tasks

    class WithANameOfItsOwn:
        def method(self) -> None: ...

    actor = context.create_actor(WithANameOfItsOwn)
    context.get(actor.method())
    its_class: Any = [("class_name", "=", "WithANameOfItsOwn")]
    where: Any = {"address": ray_cluster.dashboard, "timeout": 200, "raise_on_missing_output": False}
    until(lambda: list_actors(filters=its_class, **where), "the actor in Ray's table")
    its_name: Any = [("name", "=", "WithANameOfItsOwn.method")]
    until(lambda: list_tasks(filters=its_name, **where), "the call in Ray's table")
