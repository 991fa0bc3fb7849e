"""How options translate; nothing here needs a cluster."""

import subprocess
import sys
from typing import Any

import pytest
from ray._common import ray_option_utils

from fray import ActorOptions, RuntimeEnv, TaskOptions, UnsupportedError, create_context
from fray_ray._options import (
    CONTEXT_OPTIONS,
    actor_options,
    check_context_options,
    ray_runtime_env,
    task_options,
)


def test_resources_become_rays_own_options_and_the_rest_is_custom() -> None:
    options = TaskOptions(resources={"CPU": 2, "GPU": 0.5, "memory": 1e9, "lane": 1})
    assert task_options({}, options) == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "memory": 1_000_000_000,
        "resources": {"lane": 1},
        "max_retries": 0,
        "runtime_env": {"env_vars": {"FRAY_ACCELERATOR": "1"}},  # asks for a GPU
    }


def test_a_tasks_options_win_over_its_contexts() -> None:
    base = {"num_cpus": 4, "max_retries": 2, "resources": {"a": 1}, "label_selector": {"zone": "b"}}
    merged = task_options(base, TaskOptions(resources={"CPU": 1, "b": 2}, max_retries=5))
    assert merged == {
        "num_cpus": 1,
        "max_retries": 5,
        "resources": {"a": 1, "b": 2},
        "label_selector": {"zone": "b"},
    }
    assert task_options(base, TaskOptions())["max_retries"] == 2


def test_no_task_runs_twice_unless_it_was_asked_for() -> None:
    assert task_options({}, TaskOptions())["max_retries"] == 0


def test_variables_of_context_and_task_are_merged() -> None:
    base = {"runtime_env": {"env_vars": {"A": "1", "B": "1"}}}
    merged = task_options(base, TaskOptions(runtime_env=RuntimeEnv(["numpy"], {"B": "2"})))
    assert merged["runtime_env"] == {"pip": ["numpy"], "env_vars": {"A": "1", "B": "2"}}


def test_packages_in_a_container_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"numpy.*ubuntu"):
        ray_runtime_env(RuntimeEnv(["numpy"], container_image="ubuntu"))


def test_an_actor_takes_no_cpu_and_nothing_of_what_the_contexts_tasks_take() -> None:
    merged = actor_options({"num_cpus": 4, "memory": 10, "max_retries": 3}, ActorOptions(), "ns", {})
    assert merged == {"num_cpus": 0, "max_concurrency": 1, "max_restarts": 0}


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [({"head_node": 1.0}, {"head_node": 0.001}), ({}, {"node:__internal_head__": 0.001})],
    ids=["marked", "unmarked"],
)
def test_what_must_not_be_preempted_goes_to_the_head(
    cluster: dict[str, float], expected: dict[str, float]
) -> None:
    options = ActorOptions(name="n", preemptible=False, lifetime="detached")  # type: ignore[arg-type]
    merged = actor_options({}, options, "ns", cluster)
    assert merged["resources"] == expected
    assert (merged["name"], merged["namespace"], merged["lifetime"]) == ("n", "ns", "detached")


def test_an_own_share_of_the_heads_mark_stays_as_it_is() -> None:
    options = ActorOptions(resources={"CPU": 0, "head_node": 0.0001}, preemptible=False)
    assert actor_options({}, options, "ns", {"head_node": 1.0})["resources"] == {"head_node": 0.0001}


@pytest.mark.parametrize("options", [{"num_cpu": 1}, {"num_returns": 2}], ids=["misspelt", "per call"])
def test_an_option_that_is_none_is_named_with_those_that_are(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(options))}.*num_cpus"):
        check_context_options(options)
    with pytest.raises(ValueError, match=next(iter(options))):
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
    assert public - of_one_call - deprecated == CONTEXT_OPTIONS


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
