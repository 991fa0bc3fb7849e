"""A request as the batch script that Slurm runs: no Slurm is needed for these."""

import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from fray.cluster import Entrypoint, JobRequest, ResourceConfig
from fray_slurm._script import batch_script, directives, submit_environment, without_allocation
from fray_slurm._settings import SlurmSettings


def options_of(
    resources: ResourceConfig | None = None, settings: SlurmSettings | None = None, **fields: Any
) -> Mapping[str, str | None]:
    request = JobRequest(
        "train", Entrypoint.from_binary("true"), resources=resources or ResourceConfig(), **fields
    )
    return directives(request, "train-3f9a2c", settings or SlurmSettings(), "/shared/train-3f9a2c")


def test_a_replica_is_a_task_with_its_cpus_and_memory() -> None:
    options = options_of(ResourceConfig(cpu=4, ram="10g", replicas=3))
    assert (options["ntasks"], options["cpus-per-task"], options["mem-per-cpu"]) == ("3", "4", "2560M")
    assert "nodes" not in options


def test_a_fraction_of_a_cpu_is_a_whole_one_and_one_replica_is_on_one_node() -> None:
    options = options_of(ResourceConfig(cpu=0.5, ram="100m"))
    assert (options["cpus-per-task"], options["mem-per-cpu"], options["nodes"]) == ("1", "100M", "1")


@pytest.mark.parametrize(
    ("native", "nodes", "tasks", "gres"),
    [({}, "4", "1", "gpu:a100:2"), ({"replicas_per_node": 2}, "2", "2", "gpu:a100:4")],
)
def test_gpus_are_asked_for_by_node_and_type(
    native: dict[str, object], nodes: str, tasks: str, gres: str
) -> None:
    resources = ResourceConfig.with_gpu("A100", count=2, replicas=4)
    options = options_of(resources, backend={"slurm": native})
    assert (options["nodes"], options["ntasks-per-node"], options["gres"]) == (nodes, tasks, gres)


def test_any_gpu_has_no_type() -> None:
    assert options_of(ResourceConfig.with_gpu(count=1))["gres"] == "gpu:1"


def test_the_spec_says_where_and_the_request_says_otherwise() -> None:
    settings = SlurmSettings(
        partition="cpu",
        preemptible_partition="spot",
        account="lab",
        qos="high",
        constraint="a100",
        time="1:00:00",
    )
    options = options_of(settings=settings)
    assert [options[name] for name in ("partition", "account", "qos", "constraint", "time")] == [
        *("spot", "lab", "high", "a100", "1:00:00")
    ]
    fixed = options_of(ResourceConfig(preemptible=False), settings)
    assert fixed["partition"] == "cpu"
    native = options_of(
        settings=settings, backend={"slurm": {"partition": "gpu", "exclusive": True, "mem": "8G"}}
    )
    assert (native["partition"], native["exclusive"], native["mem"]) == ("gpu", None, "8G")
    assert "mem-per-cpu" not in native


def test_regions_are_features_of_nodes_where_the_spec_says_so() -> None:
    settings = SlurmSettings(constraint="fast", region_constraint=True)
    resources = ResourceConfig(regions=["east", "west"])
    assert options_of(resources, settings)["constraint"] == "fast&(east|west)"
    assert options_of(resources, SlurmSettings(region_constraint=True))["constraint"] == "east|west"


def test_a_job_that_must_not_be_started_again_is_not_requeued() -> None:
    assert "requeue" in options_of()
    assert "no-requeue" in options_of(max_retries_preemption=0)


@pytest.mark.parametrize(
    ("native", "problem"),
    [
        ({"array": "0-9"}, "launch_many"),
        ({"export": "A=1"}, "env_vars"),
        ({"no_requeue": True}, "max_retries_preemption"),
        ({"--mem": "1G"}, "long option"),
        ({"comment": "x"}, "labels"),
        ({"nodelist": "n1'; rm"}, "without quotes"),
        ({"nodelist": "n1\n#SBATCH --uid=0"}, "printable"),
        ({"replicas_per_node": 0}, "1 or more"),
    ],
)
def test_a_native_option_that_cannot_be_is_refused(native: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        options_of(backend={"slurm": native})


def test_options_of_other_clusters_are_passed_over() -> None:
    assert options_of(backend={"iris": {"array": "x"}}) == options_of()


def test_labels_are_the_comment() -> None:
    assert options_of(labels={"team": "speech", "run": "it's 7"})["comment"] == "team=speech,run=its 7"


def test_the_script_has_no_variable_of_the_job_and_quotes_its_command() -> None:
    command = ["/opt/python", "-c", "print('a b')", "/shared/a b"]
    script = batch_script({"ntasks": "1", "comment": "a b", "requeue": None}, command, "/shared/a b")
    lines = script.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert "#SBATCH --ntasks=1" in lines
    assert "#SBATCH --comment='a b'" in lines
    assert "#SBATCH --requeue" in lines
    assert "export SLURM_EXPORT_ENV=ALL" in lines
    assert shlex.split(lines[-1]) == ["exec", *command]


def test_sbatch_has_what_finds_programs_and_nothing_secret() -> None:
    launcher = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_TIME": "C",
        "API_TOKEN": "hunter2",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SBATCH_PARTITION": "debug",
        "PMIX_RANK": "0",
    }
    assert set(submit_environment(launcher)) == {"PATH", "HOME", "LC_TIME", "SLURM_CONF"}
    assert set(without_allocation(launcher)) == {"PATH", "HOME", "LC_TIME", "API_TOKEN", "SLURM_CONF"}
