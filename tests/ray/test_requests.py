"""How requests translate; nothing here needs a cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_dashboard import fake_dashboard
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

from fray import GpuConfig, JobRequest, ResourceConfig, UnsupportedError
from fray.cluster import EnvironmentConfig, create_environment
from fray_ray import RayCluster, deps

PROJECT = """
[project]
name = "sample"
version = "1"
requires-python = ">=3.11"
dependencies = []
[project.optional-dependencies]
own = []
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with fake_dashboard() as dashboard:
        yield RayCluster(dashboard.url)


def asked(cluster: RayCluster, **fields: Any) -> dict[str, float]:
    """What one replica asks Ray for beside CPUs, GPUs and memory."""
    return cluster.get_ray_resources(JobRequest("job", "train", resources=ResourceConfig(**fields)))


def test_a_gpu_replica_asks_for_its_type_and_any_gpu_for_none(cluster: RayCluster) -> None:
    of_a_type = {"accelerator_type:H100": 0.001}
    assert asked(cluster, cpu=8, ram="16g", device=GpuConfig("H100", 4)) == of_a_type
    assert asked(cluster, device=GpuConfig(count=2)) == {}


@pytest.mark.parametrize(
    ("told", "type_"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-ADA"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
    ],
)
def test_a_gpu_type_is_asked_for_by_the_name_that_ray_gives_nodes_that_have_it(
    cluster: RayCluster, told: str, type_: str
) -> None:
    rays: Any = NvidiaGPUAcceleratorManager
    name = rays._gpu_name_to_accelerator_type(told)
    assert asked(cluster, device=GpuConfig(type_)) == {f"accelerator_type:{name}": 0.001}


def test_an_80_gb_a100_is_never_one_of_40_gb(cluster: RayCluster) -> None:
    large, any_size = (asked(cluster, device=GpuConfig(type_)) for type_ in ("A100-80G", "A100"))
    assert (large, any_size) == ({"accelerator_type:A100-80G": 0.001}, {"accelerator_type:A100": 0.001})


def test_native_options_of_a_job_are_refused_and_those_for_others_are_not(cluster: RayCluster) -> None:
    request = JobRequest("job", "train", backend={"slurm": {"partition": "a"}, "ray": {"num_cpus": 1}})
    with pytest.raises(UnsupportedError, match=r"RayCluster has no native options.*'job' has num_cpus"):
        cluster.launch(request)


@pytest.mark.parametrize("replicas", [1, 4])
def test_replicas_with_gpus_are_a_gang_that_finds_its_ranks_also_one_alone(replicas: int) -> None:
    resources = ResourceConfig(device=GpuConfig("H100"), replicas=replicas)
    assert JobRequest("job", "train", resources=resources).is_gang
    assert not JobRequest("job", "train", resources=resources, gang=False).is_gang


def test_what_stays_goes_to_the_head_and_a_region_is_no_resource(cluster: RayCluster) -> None:
    assert asked(cluster, regions=["eu-west4"], preemptible=False) == {"node:__internal_head__": 0.001}


def test_extras_of_a_directory_that_is_no_project_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pyproject\.toml.*tpu"):
        deps.build_runtime_env_for_packages(extra=["tpu"], workspace=tmp_path)


def test_a_projects_packages_and_variables_make_a_runtime_env(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    made = deps.build_runtime_env_for_packages(
        extra=["own"], env_vars={"A": "1"}, pip_packages=["sample-package==1"], workspace=tmp_path
    )
    assert made == {"pip": ["sample-package==1"], "env_vars": {"A": "1"}}
    with pytest.raises(ValueError, match="unheard-of"):
        deps.build_runtime_env_for_packages(extra=["unheard-of"], workspace=tmp_path)


LOCK = """
version = 1
requires-python = ">=3.11"
[[package]]
name = "sample"
version = "1"
source = { virtual = "." }
[package.dev-dependencies]
train = [{ name = "locked-package" }]
[package.metadata]
[package.metadata.requires-dev]
train = [{ name = "locked-package" }]
[[package]]
name = "locked-package"
version = "2.0"
source = { registry = "https://index.invalid/simple" }
sdist = { url = "https://index.invalid/locked.tar.gz", hash = "sha256:HASH" }
"""


def test_a_dependency_group_is_what_the_lock_says(tmp_path: Path) -> None:
    groups = '[dependency-groups]\ntrain = ["locked-package"]\n'
    (tmp_path / "pyproject.toml").write_text(PROJECT + groups)
    (tmp_path / "uv.lock").write_text(LOCK.replace("HASH", "0" * 64))
    environment = create_environment(workspace=tmp_path, dependency_groups=["train"])
    assert deps.pip_list(tmp_path, environment) == ("locked-package==2.0",)
    with pytest.raises(ValueError, match="unheard-of"):
        deps.pip_list(tmp_path, create_environment(workspace=tmp_path, dependency_groups=["unheard-of"]))
    (tmp_path / "pyproject.toml").unlink()
    with pytest.raises(ValueError, match=r"no dependency groups \['train'\]"):
        deps.pip_list(tmp_path, environment)


def test_a_package_that_is_named_twice_is_installed_once(tmp_path: Path) -> None:
    environment = EnvironmentConfig(tmp_path, None, ("sample==1", "other", "sample==1"), {}, ())
    assert deps.pip_list(tmp_path, environment) == ("sample==1", "other")


def test_members_of_a_uv_workspace_are_not_asked_of_an_index(tmp_path: Path) -> None:
    table = '[tool.uv.sources]\nmember = {workspace = true}\n[tool.uv.workspace]\nmembers = ["packages/*"]\n'
    project = PROJECT.replace("dependencies = []", 'dependencies = ["member"]') + table
    (tmp_path / "pyproject.toml").write_text(project)
    member = tmp_path / "packages" / "member"
    member.mkdir(parents=True)
    (member / "pyproject.toml").write_text(PROJECT.replace("sample", "member"))
    assert deps.build_runtime_env_for_packages(["own"], workspace=tmp_path) == {}
