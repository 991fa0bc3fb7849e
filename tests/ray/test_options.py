"""What Ray is given for the options of contexts, tasks and actors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray as typed_ray
from ray._common import ray_option_utils

from fray import ActorOptions, JobContext, RuntimeEnv, TaskOptions, UnsupportedError, create_context
from fray.testing.context import ContextFixtures  # noqa: F401 - it registers what pytest rewrites
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    """A context whose tasks ask for something each."""
    options: dict[str, Any] = {
        "num_cpus": 2,
        "memory": 10_000_000,
        "resources": {"head_node": 0.25},
        "runtime_env": {"env_vars": {"OPTION_A": "1", "OPTION_B": "1"}},
    }
    with create_context("ray", address=ray_cluster.address, **options) as context:
        yield context


def look() -> tuple[dict[str, float], dict[str, str]]:
    """What Ray gave to this task or actor, and the variables that it finds."""
    found = {name: value for name, value in os.environ.items() if name.startswith("OPTION_")}
    return ray.get_runtime_context().get_assigned_resources(), found


class Member:
    def look(self) -> tuple[dict[str, float], dict[str, str]]:
        return look()


def test_a_tasks_options_are_merged_with_its_contexts_and_win(context: JobContext) -> None:
    ours = {"OPTION_A": "1", "OPTION_B": "1"}
    everything = {"CPU": 2, "memory": 10_000_000, "head_node": 0.25}
    assert context.get(context.run(look)) == (everything, ours)
    options = TaskOptions(
        resources={"CPU": 1, "node:__internal_head__": 0.5}, runtime_env=RuntimeEnv(env={"OPTION_B": "2"})
    )
    merged = {"CPU": 1, "memory": 10_000_000, "head_node": 0.25, "node:__internal_head__": 0.5}
    assert context.get(context.create_task(look, options=options)) == (merged, {**ours, "OPTION_B": "2"})


def test_an_actor_takes_no_cpu_and_no_memory_unless_it_asks_for_them(context: JobContext) -> None:
    assert context.get(context.create_actor(Member).look())[0] == {"head_node": 0.25}
    asks = context.create_actor(Member, options=ActorOptions(resources={"CPU": 1, "memory": 2e7}))
    assert context.get(asks.look())[0] == {"CPU": 1, "memory": 20_000_000, "head_node": 0.25}


def test_what_must_not_be_preempted_takes_a_little_of_the_heads_mark_or_what_it_says(
    ray_cluster: LocalRayCluster,
) -> None:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        stays = context.create_actor(Member, options=ActorOptions(preemptible=False))
        assert context.get(stays.look())[0] == {"head_node": 0.001}
        own_share = ActorOptions(resources={"head_node": 0.0001}, preemptible=False)
        assert context.get(context.create_actor(Member, options=own_share).look())[0] == {"head_node": 0.0001}


def test_packages_in_a_container_are_refused_by_name(context: JobContext) -> None:
    options = TaskOptions(runtime_env=RuntimeEnv(["numpy"], container_image="ubuntu"))
    with pytest.raises(UnsupportedError, match=r"numpy.*ubuntu"):
        context.create_task(look, options=options)


@pytest.mark.parametrize("options", [{"num_cpu": 1}, {"num_returns": 2}], ids=["misspelt", "per call"])
def test_an_option_that_is_none_is_named_with_those_that_are(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(options))}.*num_cpus"):
        create_context("ray", **options)


def test_every_option_of_a_ray_task_that_is_not_of_one_call_is_a_contexts() -> None:
    of_one_call = {"name", "num_returns"}
    deprecated = {
        "object_store_memory",
        "placement_group",
        "placement_group_bundle_index",
        "placement_group_capture_child_tasks",
    }
    public = {name for name in ray_option_utils.task_options if not name.startswith("_")}
    with pytest.raises(ValueError, match="accepted:") as refused:
        create_context("ray", no_such_option=1)
    _, _, accepted = str(refused.value).partition("placement_group, ")
    assert public - of_one_call - deprecated == set(accepted.partition(";")[0].split(", "))


def test_importing_the_package_does_not_import_ray() -> None:
    code = "import sys, fray_ray; assert 'ray' not in sys.modules; print(*fray_ray.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "RayCluster",
        "RayClusterContext",
        "RayContext",
        "current_placement_group",
        "resources_in_current_group",
        "run_on_pod",
    ]
