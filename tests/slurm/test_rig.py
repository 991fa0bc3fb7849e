"""The Slurm that the tests run on, and the batch scripts as this Slurm takes them."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from fray import ClusterUnavailableError
from fray.cluster import Entrypoint, JobRequest, ResourceConfig, poll_delays
from fray.testing.cluster import until
from fray.testing.cluster_fixtures import running
from fray_slurm._client import SlurmClient, SlurmError
from fray_slurm._script import batch_script, directives
from fray_slurm._settings import SlurmSettings
from fray_slurm.testing import LocalSlurm


def request_for(
    resources: ResourceConfig | None = None, native: Mapping[str, object] | None = None
) -> JobRequest:
    entrypoint = Entrypoint.from_binary("true")
    return JobRequest(
        "rig",
        entrypoint,
        resources=resources or ResourceConfig(),
        labels={"a b": "c"},
        backend={"slurm": native or {}},
    )


def submit(request: JobRequest, command: list[str], folder: Path, name: str) -> str:
    options = directives(request, name, SlurmSettings(), os.fspath(folder))
    return SlurmClient().submit(batch_script(options, command, os.fspath(folder)), name)


def ended(job_id: str) -> str:
    client = SlurmClient()
    for pause in poll_delays():
        job = client.queue().get(job_id)
        if job is not None and job.state in ("COMPLETED", "FAILED", "CANCELLED"):
            return job.state
        time.sleep(pause)
    raise AssertionError


def test_a_cluster_of_three_nodes_answers(slurm: LocalSlurm) -> None:
    shown = slurm.run("srun", "-N3", "-n3", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(shown.split()) == ["n1", "n2", "n3"]
    client = SlurmClient()
    assert client.node_names("n[1-3]") == ["n1", "n2", "n3"]
    assert client.address_of("n2") == "127.0.0.1"


def test_nothing_is_left_of_a_cluster(tmp_path: Path) -> None:
    with LocalSlurm(nodes=1) as slurm:
        slurm.run("sbatch", "-o", os.fspath(tmp_path / "log"), "--wrap", "echo up; srun sleep 600")
        until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text(), "the job runs")
        folder = slurm.folder
    assert not folder.exists()
    living = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True)
    assert os.fspath(folder) not in living.stdout


def test_a_request_is_taken_by_slurm_and_means_there_what_it_says(slurm: LocalSlurm, tmp_path: Path) -> None:
    request = request_for(ResourceConfig(cpu=2, ram="600m", replicas=3), native={"nice": 7})
    job_id = submit(request, ["srun", "-l", "sh", "-c", "echo $SLURM_CPUS_PER_TASK"], tmp_path, "rig-1")
    assert ended(job_id) == "COMPLETED"
    assert sorted((tmp_path / "slurm.log").read_text().split("\n"))[1:] == ["0: 2", "1: 2", "2: 2"]
    shown = slurm.run("scontrol", "show", "job", "-o", job_id)
    for word in (
        "JobName=rig-1",
        "NumTasks=3",
        "CPUs/Task=2",
        "MinMemoryCPU=300M",
        "Comment=a b=c",
        "Nice=7",
    ):
        assert word in shown


def test_gpus_with_a_type_are_granted(slurm: LocalSlurm, tmp_path: Path) -> None:
    request = request_for(ResourceConfig.with_gpu("A100", count=2, replicas=2, ram="1g"))
    job_id = submit(request, ["true"], tmp_path, "rig-gpu")
    assert ended(job_id) == "COMPLETED"
    shown = slurm.run("scontrol", "show", "job", "-o", job_id)
    assert "gres:gpu:a100:2" in shown
    assert "NumNodes=2" in shown


@pytest.mark.parametrize(
    ("native", "said"),
    [
        ({"partition": "nope"}, "invalid partition"),
        ({"mem": "999999M"}, "(?i)memory specification|not available"),
        ({"constraint": "no_such_feature"}, "(?i)invalid feature"),
        ({"no_such_option": "1"}, "unrecognized option"),
    ],
)
def test_what_slurm_refuses_is_a_value_error_with_its_words(
    slurm: LocalSlurm, tmp_path: Path, native: dict[str, object], said: str
) -> None:
    with pytest.raises(SlurmError, match=said) as caught:
        submit(request_for(native=native), ["true"], tmp_path, "rig-bad")
    assert isinstance(caught.value, ValueError)


def test_a_job_that_ended_and_one_that_never_was_are_told_apart(slurm: LocalSlurm, tmp_path: Path) -> None:
    client = SlurmClient()
    job_id = submit(request_for(), ["sh", "-c", "exit 3"], tmp_path, "rig-3")
    assert ended(job_id) == "FAILED"
    job = client.details(job_id)
    assert job is not None
    assert (job.exit_code, job.reason) == (3, "NonZeroExitCode")
    assert client.details("99999") is None
    client.cancel(job_id)
    client.cancel("99999")


def test_a_machine_without_slurm_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(ClusterUnavailableError, match=r"'squeue' on the PATH.*load its module"):
        SlurmClient().queue()


def test_a_controller_that_is_away_is_an_unavailable_cluster(slurm: LocalSlurm, tmp_path: Path) -> None:
    with LocalSlurm(nodes=1) as other, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", other.variables["SLURM_CONF"])
        other.stop_controller()
        with pytest.raises(ClusterUnavailableError, match=r"(?i)unable to contact slurm controller"):
            SlurmClient().queue()
        other.start_controller()
        assert SlurmClient().queue() == {}


def test_a_job_whose_id_was_lost_is_found_by_its_name(slurm: LocalSlurm, tmp_path: Path) -> None:
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text('#!/bin/sh\n/usr/bin/sbatch "$@" >/dev/null\necho thank you for using sbatch\n')
    wrapper.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
        job_id = submit(request_for(), ["true"], tmp_path, "rig-lost")
    assert job_id.isdigit()
    assert "JobName=rig-lost" in slurm.run("scontrol", "show", "job", "-o", job_id)


def test_a_killed_node_takes_its_jobs_along(slurm: LocalSlurm, tmp_path: Path) -> None:
    with LocalSlurm(nodes=1) as other:
        log = tmp_path / "log"
        other.run("sbatch", "-o", os.fspath(log), "--wrap", "srun sh -c 'echo $$; sleep 600'")
        pid = int(until(lambda: log.read_text().strip() if log.exists() else "", "the step runs"))
        other.kill_node("n1")
        until(lambda: not running(pid), "it is gone")
