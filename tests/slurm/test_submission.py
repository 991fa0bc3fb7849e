"""What was being submitted when its launcher was killed, when it was stopped, or under a false name."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray.cluster import (
    Cluster,
    DirectoryCluster,
    ExitReason,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
)
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm, RecordedSlurm

LATER = {"slurm": {"begin": "now+3600"}}
PATIENCE = 60.0
LAUNCHER = """
import sys
from fray.cluster import Entrypoint, JobRequest, create_cluster

request = JobRequest("job", Entrypoint.from_binary("true"), backend={"slurm": {"begin": "now+3600"}})
cluster = create_cluster(sys.argv[1])
cluster.launch_many([request] * 2) if sys.argv[2] == "sweep" else cluster.launch(request)
"""


def killed_launcher(cluster: Cluster, what: str) -> JobInfo:
    """Launch something by a process that sbatch's wrapper kills; return the job that is there then."""
    assert isinstance(cluster, DirectoryCluster)
    done = subprocess.run([sys.executable, "-c", LAUNCHER, cluster.spec, what], check=False)
    assert done.returncode == -9
    (info,) = cluster.list_jobs()
    return info


def queued(slurm: LocalSlurm, job_id: str) -> str:
    return slurm.run("squeue", "-h", "-r", "-o", "%i", f"--name={job_id}").strip()


@pytest.mark.parametrize("what", ["job", "sweep"])
def test_a_job_whose_launcher_was_killed_before_it_knew_the_number_is_followed_and_stopped(
    slurm: LocalSlurm, cluster: Cluster, wrap_sbatch: Callable[[str], None], what: str
) -> None:
    wrap_sbatch('/usr/bin/sbatch "$@" > /dev/null; kill -9 $PPID')
    job_id = killed_launcher(cluster, what).job_id
    shown = f"{job_id}/1" if what == "sweep" else job_id
    until(lambda: "begin time" in str(cluster.poll(shown).pending_reason), "its state is Slurm's", PATIENCE)
    assert queued(slurm, job_id)
    cluster.terminate(job_id)
    assert cluster.poll(job_id).status is JobStatus.STOPPED
    assert not queued(slurm, job_id)


@pytest.mark.parametrize("what", ["job", "sweep"])
def test_a_job_whose_launcher_was_killed_before_slurm_had_it_is_lost_and_can_be_run_again(
    slurm: LocalSlurm,
    cluster: Cluster,
    wrap_sbatch: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    wrap_sbatch("kill -9 $PPID")
    info = killed_launcher(cluster, what)
    assert info.status is JobStatus.PENDING  # it may still be under way
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 600)
    info = cluster.wait(info.job_id, timeout=PATIENCE)
    member = cluster.poll(f"{info.job_id}/0") if what == "sweep" else info
    assert (info.status, member.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    assert "ended before Slurm had taken" in str(info.error_message)
    wrap_sbatch('exec /usr/bin/sbatch "$@"')
    cluster.retry(info.job_id)
    assert cluster.poll(info.job_id).status is JobStatus.PENDING
    cluster.terminate(info.job_id)


@pytest.mark.parametrize("members", [1, 2], ids=["job", "sweep"])
def test_what_is_stopped_while_it_is_submitted_does_not_stay_in_the_queue(
    slurm: LocalSlurm, cluster: Cluster, wrap_sbatch: Callable[[str], None], tmp_path: Path, members: int
) -> None:
    asked, go = tmp_path / "asked", tmp_path / "go"
    wait = f"touch '{asked}'; until [ -e '{go}' ]; do sleep 0.1; done"
    wrap_sbatch(f'{wait}; exec /usr/bin/sbatch "$@"')
    requests = [JobRequest("job", program("pass"), backend=LATER)] * members
    with ThreadPoolExecutor() as pool:
        if members == 1:
            launched = pool.submit(cluster.launch, requests[0])
        else:
            launched = pool.submit(cluster.launch_many, requests)
        until(asked.exists, "sbatch is called", PATIENCE)
        (info,) = cluster.list_jobs()
        cluster.terminate(info.job_id)
        go.touch()
        assert launched.result(PATIENCE) == info.job_id
    assert cluster.poll(info.job_id).status is JobStatus.STOPPED
    until(lambda: not queued(slurm, info.job_id), "the queue has it no more", PATIENCE)


def test_jobs_are_seen_though_the_variables_name_another_user(
    slurm: LocalSlurm, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "nobody")
    job_id = launch(cluster, program("pass"), backend=LATER)
    until(lambda: "begin time" in str(cluster.poll(job_id).pending_reason), "Slurm has it", PATIENCE)


@pytest.mark.parametrize("replicas", [1, 2], ids=["job", "array"])
def test_a_folder_of_any_name_has_the_records(slurm: LocalSlurm, tmp_path: Path, replicas: int) -> None:
    cluster = create_cluster("slurm", root=tmp_path / "ada's 100%j", poll_interval=0.5)
    resources = ResourceConfig(cpu=1, ram="100m", replicas=replicas)
    job_id = launch(cluster, program("print('up')"), resources=resources, labels={"path": "it's C:\\"})
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message


def test_a_job_after_a_sweep_waits_for_its_arrays(recorded: RecordedSlurm, tmp_path: Path) -> None:
    """As for any other job: one that started before would hold the nodes that the sweep needs."""
    cluster = create_cluster(f"slurm?root={tmp_path}/records")
    sweep = cluster.launch_many([JobRequest("one", program("pass"))] * 3)
    launch(cluster, program("pass"), after=[sweep])
    assert "#SBATCH --dependency=afterok:77\n" in recorded.script
    launch(cluster, program("pass"), after=[sweep.member(1)])
    assert "#SBATCH --dependency=afterok:77_1\n" in recorded.script


@pytest.mark.parametrize("what", ["job", "replicas", "sweep"])
def test_what_slurm_has_taken_and_could_not_be_noted_is_cancelled(
    recorded: RecordedSlurm, tmp_path: Path, what: str
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records")
    cluster.launch(JobRequest("first", program("pass")))  # asks whether the nodes see the folder
    sbatch = tmp_path / "recorded" / "sbatch"
    gone = f"find '{tmp_path}/records' -name slurm -prune -exec rm -r {{}} +"
    sbatch.write_text(sbatch.read_text().replace("exit ", f"{gone}\nexit "))
    recorded.says("sbatch", "78\n")
    request = JobRequest("job", program("pass"), resources=ResourceConfig(replicas=1 + (what == "replicas")))
    with pytest.raises(FileNotFoundError):
        cluster.launch_many([request] * 2) if what == "sweep" else cluster.launch(request)
    assert recorded.calls("scancel") == ["scancel 78"]
    assert [info.name for info in cluster.list_jobs()] == ["first"]


@pytest.mark.parametrize("what", ["job", "sweep"])
def test_a_job_of_another_slurm_that_has_the_same_folder_is_neither_lost_nor_settled(
    recorded: RecordedSlurm, tmp_path: Path, what: str
) -> None:
    """As where login nodes of several clusters have one home folder."""
    spec = f"slurm?root={tmp_path}/records&poll_interval=0.05"
    recorded.says("scontrol", "ClusterName             = here\n")
    here, request = create_cluster(spec), JobRequest("job", program("pass"))
    job_id = here.launch_many([request] * 2) if what == "sweep" else here.launch(request)
    shown = f"{job_id}/0" if what == "sweep" else job_id
    recorded.says("scontrol", "ClusterName             = there\n")
    there = create_cluster(spec)
    assert "in the queue of the Slurm cluster 'here'" in str(there.poll(shown).pending_reason)
    time.sleep(1)  # after which Slurm, if it does not have a job, has lost it
    assert there.poll(job_id).status is JobStatus.PENDING
    assert there.prune().jobs == ()
    recorded.says("squeue", "77|PENDING|1:00|Priority\n77_0|PENDING|1:00|Priority\n")
    until(lambda: "higher priority" in str(here.poll(shown).pending_reason), "it is followed here", 10)
    there.terminate(job_id)
    assert here.poll(job_id).status is JobStatus.STOPPED
    assert not recorded.calls("scancel")
