"""The jobs that a job launched, where something else than its own program ends that job."""

from collections.abc import Callable, Iterator

import pytest

from fray.cluster import Cluster, ExitReason, JobId, JobStatus, ResourceConfig
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm

pytestmark = pytest.mark.timeout(180)
PATIENCE = 90.0
SMALL = ResourceConfig(ram="200m")
# Both wait in Slurm's queue: they have no supervisor yet that the one of their parent could ask.
LAUNCHES = """
import sys, time
from fray.cluster import Entrypoint, JobRequest, ResourceConfig, current_cluster

one = JobRequest(
    "one",
    Entrypoint.from_binary("sleep", ["600"]),
    resources=ResourceConfig(ram="200m"),
    backend={"slurm": {"begin": "now+1hour"}},
)
cluster = current_cluster()
print("launched", cluster.launch(one), cluster.launch_many([one] * 2), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    """A Slurm that gives a cancelled job as long as others do."""
    with LocalSlurm(nodes=1, kill_wait=30) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.variables.items():
            patch.setenv(name, value)
        yield running


def launched(cluster: Cluster, parent: str, replica: int = 0) -> list[JobId]:
    """Return the jobs that a replica of a job has launched, once it has."""
    told = next(line for line in cluster.monitor(parent, replica=replica) if line.startswith("launched "))
    return [JobId(word) for word in told.split()[1:]]


def queued(slurm: LocalSlurm, jobs: list[JobId]) -> list[str]:
    """Return the names of those Slurm jobs that wait, as far as they are of these jobs."""
    names = slurm.run("squeue", "-h", "-t", "PD", "-o", "%j").splitlines()
    return [name for name in names if any(name.startswith(job) for job in jobs)]


def until_gone(slurm: LocalSlurm, cluster: Cluster, jobs: list[JobId]) -> None:
    """Return once none of these jobs waits in the queue, and all read stopped."""
    until(lambda: not queued(slurm, jobs), "the queue has none of them", PATIENCE)
    stopped = {JobStatus.STOPPED}
    until(lambda: {cluster.poll(job).status for job in jobs} == stopped, "all read stopped", PATIENCE)


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_waits_in_the_queue_leaves_it_with_the_job_that_launched_it_and_is_out_of_time(
    slurm: LocalSlurm, cluster: Cluster, replicas: int
) -> None:
    resources = ResourceConfig(ram="200m", replicas=replicas)
    parent = launch(cluster, program(LAUNCHES, 600), "parent", resources=resources, timeout=20.0)
    jobs = [job for replica in range(replicas) for job in launched(cluster, parent, replica)]
    assert cluster.wait(parent, timeout=PATIENCE).status is JobStatus.FAILED
    until_gone(slurm, cluster, jobs)


def test_what_waits_in_the_queue_stays_there_when_the_job_that_launched_it_fails_by_itself(
    slurm: LocalSlurm, cluster: Cluster
) -> None:
    parent = launch(cluster, program(LAUNCHES, 0), "parent", resources=SMALL)
    jobs = launched(cluster, parent)
    assert cluster.wait(parent, timeout=PATIENCE).exit_code == 3
    slurm.wait_until_idle()  # its batch step has ended
    assert {cluster.poll(job).status for job in jobs} == {JobStatus.PENDING}
    assert len(queued(slurm, jobs)) == 2  # a job, and a line for the array


def test_what_waits_in_the_queue_leaves_it_with_the_job_that_launched_it_and_was_cancelled(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str]
) -> None:
    parent = launch(cluster, program(LAUNCHES, 600), "parent", resources=SMALL)
    jobs = launched(cluster, parent)
    slurm.run("scancel", number_of(parent))
    until_gone(slurm, cluster, jobs)


def test_a_job_that_is_requeued_runs_again_and_what_it_launched_stays_in_the_queue(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str]
) -> None:
    parent = launch(cluster, program(LAUNCHES, 600), "parent", resources=SMALL)
    jobs, number = launched(cluster, parent), number_of(parent)
    slurm.run("scontrol", "requeue", number)
    slurm.end_hold(number)
    until(lambda: cluster.poll(parent).tasks[0].attempt == 2, "it runs again", PATIENCE)
    assert cluster.poll(parent).tasks[0].previous[0].reason is ExitReason.PREEMPTED
    assert {cluster.poll(job).status for job in jobs} == {JobStatus.PENDING}
    assert len(queued(slurm, jobs)) == 2


def test_a_job_that_was_cancelled_says_so_in_its_record_when_slurm_has_forgotten_it(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str]
) -> None:
    job_id = launch(
        cluster, program("import time; print('up', flush=True); time.sleep(600)"), resources=SMALL
    )
    assert next(line for line in cluster.monitor(job_id) if line == "up")
    slurm.run("scancel", number_of(job_id))
    slurm.wait_until_idle()
    slurm.stop_controller(lose_jobs=True)
    slurm.start_controller()
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)
