"""A request as the batch script that Slurm runs: no Slurm is needed for these."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fray.cluster import (
    Cluster,
    Entrypoint,
    JobRequest,
    ResourceConfig,
    SlurmCluster,
    create_cluster,
    create_environment,
)
from fray.testing.cluster import launch, program
from fray_slurm.testing import RecordedSlurm

SPEC = "slurm?root=/shared/records"


def script_of(resources: ResourceConfig | None = None, spec: str = SPEC, **fields: Any) -> str:
    entrypoint = Entrypoint.from_binary("true")
    cluster = create_cluster(spec)
    assert isinstance(cluster, SlurmCluster)
    request = JobRequest("train", entrypoint, resources=resources or ResourceConfig(), **fields)
    return str(cluster.batch_script(request))


def options_of(
    resources: ResourceConfig | None = None, spec: str = SPEC, **fields: Any
) -> Mapping[str, str | None]:
    """Return the options of a script; None for one without a value."""
    found: dict[str, str | None] = {}
    for line in script_of(resources, spec, **fields).splitlines():
        if line.startswith("#SBATCH --"):
            name, equals, value = line.removeprefix("#SBATCH --").partition("=")
            found[name] = value.strip("'") if equals else None
    return found


def test_a_replica_of_a_gang_is_a_task_with_its_cpus_and_memory() -> None:
    options = options_of(ResourceConfig(cpu=4, ram="10g", replicas=3), gang=True)
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


@pytest.mark.parametrize("native", [{"gpus": "h100:4"}, {"gpus_per_node": 2}, {"gres": "shard:4"}])
def test_gpus_that_a_request_asks_for_in_slurms_own_words_are_not_asked_for_twice(
    native: dict[str, object],
) -> None:
    options = options_of(ResourceConfig.with_gpu("H100", count=4), backend={"slurm": native})
    asked = {name: options[name] for name in ("gres", "gpus", "gpus-per-node") if name in options}
    assert asked == {key.replace("_", "-"): str(value) for key, value in native.items()}


def test_the_spec_says_where_and_the_request_says_otherwise() -> None:
    spec = f"{SPEC}&partition=cpu&preemptible_partition=spot&account=lab&qos=high&constraint=a100&time=60"
    options = options_of(spec=spec)
    assert [options[name] for name in ("partition", "account", "qos", "constraint", "time")] == [
        *("spot", "lab", "high", "a100", "60")
    ]
    assert options_of(ResourceConfig(preemptible=False), spec)["partition"] == "cpu"
    native = {"partition": "gpu", "exclusive": True, "mem": "8G"}
    options = options_of(spec=spec, backend={"slurm": native})
    assert (options["partition"], options["exclusive"], options["mem"]) == ("gpu", None, "8G")
    assert "mem-per-cpu" not in options


def test_a_spec_without_a_partition_leaves_it_and_the_time_limit_to_slurm() -> None:
    assert not {"partition", "account", "qos", "constraint", "time"} & set(options_of())


def test_regions_are_features_of_nodes_where_the_spec_says_so() -> None:
    resources = ResourceConfig(regions=["east", "west"])
    spec = f"{SPEC}&region_constraint=true"
    assert options_of(resources, f"{spec}&constraint=fast")["constraint"] == "fast&(east|west)"
    assert options_of(resources, spec)["constraint"] == "east|west"


def test_a_job_that_must_not_be_started_again_is_not_requeued() -> None:
    assert "requeue" in options_of()
    assert "no-requeue" in options_of(max_retries_preemption=0)


def test_replicas_get_a_signal_before_the_time_limit() -> None:
    assert options_of(spec=f"{SPEC}&grace=90")["signal"] == "TERM@90"


@pytest.mark.parametrize(
    ("native", "problem"),
    [
        ({"array": "0-9"}, "launch_many"),
        ({"export": "A=1"}, "env_vars"),
        ({"dependency": "afterok:7"}, "after="),
        ({"no_requeue": True}, "max_retries_preemption"),
        ({"--mem": "1G"}, "long option"),
        ({"comment": "x"}, "labels"),
        ({"nodelist": "n1'; rm"}, "without quotes"),
        ({"nodelist": "n1\n#SBATCH --uid=0"}, "printable"),
        ({"replicas_per_node": 0}, "1 or more"),
        ({"signal": "USR1@120"}, "grace"),
    ],
)
def test_a_native_option_that_cannot_be_is_refused(native: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        options_of(backend={"slurm": native})


@pytest.mark.parametrize("option", ["gres", "gpus", "gpus-per-node", "mem-per-gpu"])
def test_what_is_for_a_node_is_refused_where_several_replicas_may_be_on_one(option: str) -> None:
    """Slurm gives all of it to the first of them, and the others wait for ever."""
    gpus = ResourceConfig.with_gpu("A100", count=2, replicas=4)
    with pytest.raises(ValueError, match="several may be on one node"):
        options_of(resources=gpus, backend={"slurm": {option: "8", "replicas_per_node": 4}})
    with pytest.raises(ValueError, match="several may be on one node"):
        options_of(resources=ResourceConfig(replicas=2), gang=True, backend={"slurm": {option: "8"}})
    assert options_of(resources=gpus, backend={"slurm": {option: "8"}})[option] == "8"


def test_options_of_other_clusters_are_passed_over() -> None:
    given = options_of(backend={"iris": {"array": "x"}})
    assert set(given) == set(options_of())


def test_labels_are_the_comment() -> None:
    assert options_of(labels={"team": "speech", "run": "it's 7"})["comment"] == "team=speech,run=its 7"


def test_the_script_quotes_its_command_and_looks_for_its_folder() -> None:
    script = script_of(spec="slurm?root=/shared/my records", labels={"team": "a b"})
    lines = script.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert "#SBATCH --comment='team=a b'" in lines
    assert "export SLURM_EXPORT_ENV=ALL" in lines
    command = shlex.split(lines[-1])
    assert command[0] == "exec"
    assert any(word.startswith("/shared/my records/train-") for word in command)
    assert "must be shared by all nodes" in script


def test_sbatch_has_what_finds_programs_and_nothing_secret(
    recorded: RecordedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = {
        "LC_TIME": "C",
        "API_TOKEN": "hunter2",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SBATCH_PARTITION": "debug",
        "PMIX_RANK": "0",
    }
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    cluster: Cluster = create_cluster(f"slurm?root={tmp_path}/records")
    environment = create_environment(env_vars={"TOKEN": "hunter3"})
    launch(cluster, program("pass"), environment=environment)
    assert {"PATH", "LC_TIME", "SLURM_CONF"} <= set(recorded.environ)
    assert not {"API_TOKEN", "TOKEN", "SLURM_CPU_BIND", "SBATCH_PARTITION", "PMIX_RANK"} & set(
        recorded.environ
    )
    assert recorded.environ["SLURM_CONF"] == os.environ["SLURM_CONF"]
    assert "hunter" not in recorded.script
    assert not any("hunter" in call for call in recorded.calls("sbatch"))
