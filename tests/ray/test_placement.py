"""A context keeps its work in the placement group that its program is in."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray as typed_ray
from ray.util import get_current_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fray import JobContext, UnsupportedError, create_context, get_job_context
from fray.cluster import Entrypoint, JobRequest, JobStatus, ResourceConfig
from fray_ray import RayCluster, current_placement_group, resources_in_current_group
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types


def group_of_task() -> str:
    group = get_current_placement_group()
    return "" if group is None else str(group.id.hex())


def group_of_nested_task() -> str:
    here = get_job_context()
    return here.get(here.run(group_of_task))


class Member:
    def group(self) -> str:
        return group_of_task()


def groups_of(context: JobContext) -> list[str]:
    member = context.create_actor(Member)
    return context.get([context.run(group_of_task), context.run(group_of_nested_task), member.group()])


def groups_of_all() -> list[str]:
    with create_context("ray?placement_group=current") as context:
        return groups_of(context)


@pytest.fixture
def group(ray_cluster: LocalRayCluster) -> Iterator[Any]:
    ray.init(ray_cluster.address, ignore_reinit_error=True)
    group = placement_group([{"CPU": 2}])
    ray.get(group.ready())
    yield group
    remove_placement_group(group)


def test_tasks_and_actors_are_in_the_group_of_their_program(group: Any) -> None:
    there = PlacementGroupSchedulingStrategy(group)
    program = ray.remote(num_cpus=0, scheduling_strategy=there)(groups_of_all)
    assert ray.get(program.remote()) == [group.id.hex()] * 3


def test_resources_of_the_group_are_a_part_of_what_it_reserved(group: Any) -> None:
    there = PlacementGroupSchedulingStrategy(group)
    inside = ray.remote(num_cpus=0, scheduling_strategy=there)(resources_in_current_group)
    asked = ray.get(inside.remote({"CPU": 1}))
    assert asked == {f"CPU_group_{group.id.hex()}": 1}
    with create_context("ray") as context:
        assert current_placement_group() is None
        assert groups_of(context) == [""] * 3
    ray.get(ray.remote(num_cpus=0, resources=asked)(group_of_task).remote(), timeout=200)


def print_groups() -> None:
    group = current_placement_group()
    assert group is not None
    assert groups_of_all() == [group.id.hex()] * 3
    print("all inside, threads for numpy:", os.environ["OMP_NUM_THREADS"])


def test_a_replicas_context_is_in_the_group_of_its_job(ray_cluster: LocalRayCluster) -> None:
    with RayCluster(ray_cluster.address) as cluster:
        entrypoint = Entrypoint.from_callable(print_groups)
        request = JobRequest("inside", entrypoint, resources=ResourceConfig(cpu=2))
        job_id = cluster.launch(request)
        info = cluster.wait(job_id, timeout=200)
        assert info.status is JobStatus.SUCCEEDED, info.error_message
        assert "all inside, threads for numpy: 2" in "".join(cluster.monitor(job_id))


def test_a_program_in_no_group_gets_an_error(ray_cluster: LocalRayCluster) -> None:
    context = create_context(f"ray?address={ray_cluster.address}&placement_group=current")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="in no placement group"):
            context.run(group_of_task)
    context.shutdown()
    with pytest.raises(UnsupportedError, match="in no placement group"):
        resources_in_current_group({"CPU": 1})


def test_a_value_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'current'"):
        create_context("ray?placement_group=mine")
    with pytest.raises(ValueError, match="give one"):
        create_context("ray", placement_group="current", scheduling_strategy="SPREAD")
