"""Sweeps as arrays of jobs: what is submitted, and what somebody else's scancel does."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fray import UnsupportedError
from fray.cluster import Cluster, JobRequest, JobStatus, ResourceConfig, create_cluster, create_environment
from fray.testing.cluster import program, until
from fray_slurm.testing import LocalSlurm, RecordedSlurm

SMALL, LARGE = ResourceConfig(cpu=1, ram="64m"), ResourceConfig(cpu=2, ram="64m")


def requests(*resources: ResourceConfig) -> list[JobRequest]:
    return [
        JobRequest("lr", program("pass"), resources=each, labels={"lr": str(number)})
        for number, each in enumerate(resources)
    ]


@pytest.fixture
def printed(recorded: RecordedSlurm, tmp_path: Path) -> Cluster:
    """A cluster whose jobs only seem to be submitted."""
    recorded.says("scontrol", "MaxArraySize            = 1001\n")
    return create_cluster(f"slurm?root={tmp_path}/records")


def test_a_thousand_members_are_one_array_with_its_limit(printed: Cluster, recorded: RecordedSlurm) -> None:
    printed.launch_many(requests(*[SMALL] * 1000), max_parallel=32)
    assert len(recorded.calls("sbatch")) == 1
    assert "#SBATCH --array=0-999%32\n" in recorded.script
    assert "#SBATCH --cpus-per-task=1\n" in recorded.script
    assert "--comment" not in recorded.script  # each member has labels of its own


def test_members_that_ask_for_different_things_are_arrays_that_share_the_limit(
    printed: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    sweep = printed.launch_many(requests(SMALL, LARGE, SMALL, SMALL), max_parallel=3)
    folder = tmp_path / "records" / sweep / "slurm"
    arrays = [(folder / f"script-{first}.sh").read_text() for first in (0, 1)]
    assert "#SBATCH --array=0,2-3%2\n" in arrays[0]
    assert "#SBATCH --array=1%1\n" in arrays[1]
    with pytest.raises(UnsupportedError, match="max_parallel must be 2 or more, got 1"):
        printed.launch_many(requests(SMALL, LARGE), max_parallel=1)
    assert len(printed.list_jobs()) == 1


def test_more_members_than_an_array_may_have_are_several(
    printed: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    recorded.says("scontrol", "MaxArraySize            = 3\n")
    sweep = printed.launch_many(requests(*[SMALL] * 5))
    folder = tmp_path / "records" / sweep / "slurm"
    arrays = [(folder / f"script-{first}.sh").read_text() for first in (0, 3)]
    assert "#SBATCH --array=0-2\n" in arrays[0]
    assert "#SBATCH --array=0-1\n" in arrays[1]


def test_a_limit_and_members_that_run_after_others_are_refused_together(printed: Cluster) -> None:
    first, second = requests(SMALL, SMALL)
    waits = JobRequest("lr", program("pass"), after=[0])
    with pytest.raises(UnsupportedError, match="launch two sweeps"):
        printed.launch_many([first, second, waits], max_parallel=1)
    assert printed.list_jobs() == []


def test_a_sweep_that_slurm_refuses_leaves_nothing(printed: Cluster, recorded: RecordedSlurm) -> None:
    recorded.says("sbatch", "", error="sbatch: error: Invalid job array specification", code=1)
    with pytest.raises(ValueError, match="Invalid job array specification"):
        printed.launch_many(requests(SMALL))
    assert printed.list_jobs() == []


def test_each_array_of_a_sweep_whose_ids_were_lost_is_found(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, wrap_sbatch: Callable[[str], None]
) -> None:
    wrap_sbatch('/usr/bin/sbatch "$@" >/dev/null && echo thank you for using sbatch')
    native = {"slurm": {"begin": "now+3600"}}
    kinds = [LARGE, SMALL, LARGE, ResourceConfig(cpu=3, ram="64m")]
    sweep = cluster.launch_many(
        [JobRequest("one", program("pass"), resources=each, backend=native) for each in kinds]
    )
    for position, each in enumerate(kinds):
        path = tmp_path / "records" / sweep / "jobs" / str(position) / "slurm" / "job.json"
        shown = slurm.run("scontrol", "show", "job", "-o", json.loads(path.read_text())["id"])
        assert f"CPUs/Task={each.cpu:g}" in shown
    cluster.terminate(sweep)
    assert f"{sweep}" not in slurm.run("squeue", "-h", "-o", "%j")


def test_secrets_of_members_reach_them_and_not_slurm(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path
) -> None:
    environment = create_environment(env_vars={"API_TOKEN": "hunter2-9c1d"})
    show = program("import os; print(os.environ['API_TOKEN'][:6], os.environ['FRAY_SWEEP_INDEX'])")
    sweep = cluster.launch_many([JobRequest("one", show, resources=SMALL, environment=environment)] * 2)
    info = cluster.wait(sweep, timeout=90)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [list(cluster.monitor(sweep.member(each))) for each in range(2)] == [["hunter 0"], ["hunter 1"]]
    folder = tmp_path / "records" / sweep
    secrets = "jobs/*/slurm/secrets.json"
    until(lambda: not list(folder.glob(secrets)), "what its batch steps needed is gone", 30)
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in kept if b"hunter2" in path.read_bytes()] == []


def test_secrets_of_members_that_never_start_are_in_no_file(printed: Cluster, tmp_path: Path) -> None:
    environment = create_environment(env_vars={"API_TOKEN": "hunter2-9c1d"})
    sweep = printed.launch_many([JobRequest("one", program("pass"), environment=environment)] * 2)
    printed.terminate(sweep)
    kept = [path for path in (tmp_path / "records").rglob("*") if path.is_file()]
    assert [path.name for path in kept if b"hunter2" in path.read_bytes()] == []


def test_a_task_and_an_array_that_somebody_cancels_are_stopped(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path
) -> None:
    sleep = program("import time; time.sleep(600)")
    native = {"slurm": {"begin": "now+3600"}}
    sweep = cluster.launch_many([JobRequest("one", sleep, resources=SMALL, backend=native)] * 3)
    noted = json.loads((tmp_path / "records" / sweep / "jobs" / "1" / "slurm" / "job.json").read_text())
    slurm.run("scancel", noted["id"])
    until(lambda: cluster.poll(sweep).progress == {"pending": 2, "stopped": 1}, "one is stopped", 60)
    slurm.run("scancel", noted["id"].partition("_")[0])
    info = cluster.wait(sweep, timeout=60)
    assert (info.status, info.progress) == (JobStatus.STOPPED, {"stopped": 3})
    cluster.remove(sweep)
    assert cluster.list_jobs() == []


@pytest.mark.parametrize("what", ["sweep", "replicas"])
def test_a_job_starts_after_another_whose_end_nobody_wrote(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, what: str
) -> None:
    """The batch step of the last one was killed when all had ended, before it wrote that of the whole."""
    request = JobRequest("one", program("pass"), resources=SMALL)
    if what == "sweep":
        before: str = cluster.launch_many([request] * 2)
    else:
        before = cluster.launch(replace(request, resources=replace(SMALL, replicas=2)))
    path = tmp_path / "records" / before / "status.json"
    unfinished = path.read_text()
    assert cluster.wait(before, timeout=90).status is JobStatus.SUCCEEDED
    until(lambda: '"finished_at":null' not in path.read_text().replace(" ", ""), "its end is written", 30)
    path.write_text(unfinished)
    assert cluster.poll(before).status is JobStatus.SUCCEEDED
    last = cluster.launch(replace(request, after=[before]))
    assert cluster.wait(last, timeout=90).status is JobStatus.SUCCEEDED
