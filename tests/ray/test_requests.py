"""How requests translate; nothing here needs a cluster."""

from pathlib import Path

import pytest

from fray import GpuConfig, ResourceConfig
from fray_ray import deps
from fray_ray._logs import JobLog
from fray_ray._requests import bundle_of, labels_of, remote_options

PROJECT = """
[project]
name = "sample"
version = "1"
requires-python = ">=3.11"
dependencies = []
[project.optional-dependencies]
own = []
"""


def test_a_gpu_replica_asks_for_its_count_and_its_type() -> None:
    resources = ResourceConfig(cpu=8, ram="16g", device=GpuConfig("H100", 4))
    bundle = bundle_of(resources, {})
    assert bundle == {"CPU": 8, "memory": 16 * 2**30, "GPU": 4, "accelerator_type:H100": 0.001}
    assert remote_options(bundle) == {
        "num_cpus": 8,
        "memory": 16 * 2**30,
        "num_gpus": 4,
        "resources": {"accelerator_type:H100": 0.001},
    }


def test_regions_become_a_label_and_what_stays_goes_to_the_head() -> None:
    resources = ResourceConfig(regions=["eu-west4", "us-east1"], preemptible=False)
    assert labels_of(resources) == {"ray.io/availability-region": "in(eu-west4,us-east1)"}
    assert bundle_of(resources, {"head_node": 1})["head_node"] == 0.001
    assert bundle_of(resources, {})["node:__internal_head__"] == 0.001


def test_a_log_is_taken_apart_by_replica_and_attempt() -> None:
    text = (
        "Runtime env is setting up.\n[fray] replica 1 starts, attempt 1\n[replica-1] one\n"
        "[fray] replica 0 starts, attempt 1\n[replica-0] \n[fray] replica 1 starts, attempt 2\n"
        "[replica-1] two\n[replica-1] half a li"
    )
    log = JobLog(lambda: text)
    assert log.read(1, 1, 0) == b"one\n"
    assert log.read(1, 2, 0) == b"two\n"
    assert log.read(1, 2, 2) == b"o\n"
    assert log.read(0, 1, 0) == b"\n"
    assert log.read(None, 0, 0) == b""


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
