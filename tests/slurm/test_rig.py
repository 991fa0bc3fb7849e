"""The Slurm that the tests run on, and what it makes of requests."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fray import ClusterUnavailableError
from fray.cluster import Cluster, Entrypoint, JobRequest, JobStatus, ResourceConfig, create_cluster
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import running
from fray_slurm import SlurmError
from fray_slurm.testing import LocalSlurm

DROPS_NUMBERS = '/usr/bin/sbatch "$@" >/dev/null && echo thank you for using sbatch'


@pytest.fixture
def details(slurm: LocalSlurm, number_of: Callable[[str], str]) -> Callable[[str], str]:
    """Return what Slurm says of a job."""
    return lambda job_id: slurm.run("scontrol", "show", "job", "-o", number_of(job_id))


def test_a_cluster_of_three_nodes_answers(slurm: LocalSlurm) -> None:
    shown = slurm.run("srun", "-N3", "-n3", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(shown.split()) == ["n1", "n2", "n3"]


def test_nothing_is_left_of_a_cluster(tmp_path: Path) -> None:
    with LocalSlurm(nodes=1) as slurm:
        slurm.run("sbatch", "-o", os.fspath(tmp_path / "log"), "--wrap", "echo up; srun sleep 600")
        until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text(), "the job runs")
        folder = slurm.folder
    assert not folder.exists()
    living = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True)
    assert os.fspath(folder) not in living.stdout


def test_a_request_is_taken_by_slurm_and_means_there_what_it_says(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, details: Callable[[str], str]
) -> None:
    resources = ResourceConfig(cpu=2, ram="600m", replicas=3)
    job_id = cluster.launch(
        JobRequest(
            "rig",
            Entrypoint.from_binary("sh", ["-c", "echo $SLURM_CPUS_PER_TASK $SLURM_STEP_NUM_TASKS"]),
            resources=resources,
            gang=True,
            labels={"a b": "c"},
            backend={"slurm": {"nice": 7}},
        )
    )
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED
    assert {line.partition("] ")[2] for line in cluster.monitor(job_id)} == {"2 1"}
    shown = details(job_id)
    wanted = "NumTasks=3", "CPUs/Task=2", "MinMemoryCPU=300M", "Comment=a b=c", "Nice=7"
    for word in (f"JobName={job_id}", *wanted):
        assert word in shown


def test_gpus_with_a_type_are_granted(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, details: Callable[[str], str]
) -> None:
    resources = ResourceConfig.with_gpu("A100", count=2, replicas=2, ram="1g")
    job_id = launch(cluster, program("pass"), resources=resources)
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED
    shown = details(job_id)
    assert "gres:gpu:a100:2" in shown
    assert "NumNodes=2" in shown


@pytest.mark.parametrize(
    ("native", "said"),
    [
        ({"partition": "nope"}, "invalid partition"),
        ({"mem": "999999M"}, "(?i)memory specification|not available"),
        ({"constraint": "no_such_feature"}, "(?i)invalid feature"),
        ({"no_such_option": "1"}, "unrecognized option"),
        ({"gres": "gpu:h100:1"}, "(?i)not available|invalid generic resource"),
    ],
)
def test_what_slurm_refuses_is_a_value_error_with_its_words_and_leaves_no_record(
    cluster: Cluster, native: Mapping[str, object], said: str
) -> None:
    with pytest.raises(SlurmError, match=said) as caught:
        launch(cluster, program("pass"), backend={"slurm": native})
    assert isinstance(caught.value, ValueError)
    assert cluster.list_jobs() == []


def test_slurm_says_of_a_job_that_failed_that_it_failed(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, details: Callable[[str], str]
) -> None:
    job_id = launch(cluster, program("raise SystemExit(3)"))
    info = cluster.wait(job_id, timeout=60)
    assert (info.status, info.exit_code) == (JobStatus.FAILED, 3)
    until(lambda: "JobState=FAILED" in details(job_id), "Slurm says so too")


def test_a_machine_without_slurm_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = create_cluster("slurm", root=tmp_path / "records")
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "nothing"))
    with pytest.raises(ClusterUnavailableError, match=r"on the PATH.*login node.*load its module"):
        launch(cluster, program("pass"))
    assert cluster.list_jobs() == []


def test_a_job_whose_id_was_lost_is_found_by_its_name(
    slurm: LocalSlurm,
    cluster: Cluster,
    wrap_sbatch: Callable[[str], None],
    details: Callable[[str], str],
) -> None:
    wrap_sbatch(DROPS_NUMBERS)
    job_id = launch(cluster, program("pass"), "lost")
    assert f"JobName={job_id}" in details(job_id)
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED


def test_an_array_whose_id_was_lost_is_found_by_its_name(
    slurm: LocalSlurm,
    cluster: Cluster,
    wrap_sbatch: Callable[[str], None],
    number_of: Callable[[str], str],
) -> None:
    wrap_sbatch(DROPS_NUMBERS)
    resources = ResourceConfig(cpu=1, ram="200m", replicas=3)
    native = {"slurm": {"begin": "now+3600"}}
    job_id = launch(cluster, program("pass"), "lost", resources=resources, backend=native)
    last = launch(cluster, program("pass"), "last", after=[job_id])
    until(lambda: "begin time" in str(cluster.poll(job_id).pending_reason), "it waits")
    slurm.run("scontrol", "update", f"JobId={number_of(job_id)}", "StartTime=now")
    assert cluster.wait(last, timeout=60).status is JobStatus.SUCCEEDED
    assert cluster.poll(job_id).status is JobStatus.SUCCEEDED


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has just ended, or is somebody else's
        return ""


def test_a_killed_node_takes_its_jobs_along(slurm: LocalSlurm, tmp_path: Path) -> None:
    with LocalSlurm(nodes=1) as other:
        log = tmp_path / "log"
        other.run("sbatch", "-o", os.fspath(log), "--wrap", "srun sh -c 'echo $$; sleep 600'")
        pid = int(until(lambda: log.read_text().strip() if log.exists() else "", "the step runs"))
        other.kill_node("n1")
        until(lambda: not running(pid), "it is gone")
        folder = os.fspath(other.folder)
    environs = [path for path in Path("/proc").glob("[0-9]*/environ") if folder in text_of(path)]
    assert environs == []  # nor a manager of its steps, whose command line does not say whose it is
