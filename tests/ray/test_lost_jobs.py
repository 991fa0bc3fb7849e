"""What is left of a job whose driver was killed is ended when the job is terminated."""

from dataclasses import replace
from pathlib import Path

import pytest
from job_processes import alive, driver_of, kill
from ray.job_submission import JobSubmissionClient

from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, create_environment
from fray.testing.gates import until
from fray_ray import RayCluster, _job_kv
from fray_ray._job_table import TableEntry, submission_of
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(400)


def test_terminating_a_job_that_ray_lost_ends_what_is_left_of_it(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    entrypoint = Entrypoint.from_binary(
        "sh", ["-c", "echo $$ > $0.draft; mv $0.draft $0; sleep 600", str(started)]
    )
    environment = create_environment(env_vars={"PLAIN": "value"})
    job_id = joined_cluster.launch(JobRequest("lost", entrypoint, environment=environment))
    until(started.exists, "it runs", 200)
    kill(driver_of(job_id))
    info = joined_cluster.wait(job_id, timeout=120)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    joined_cluster.terminate(job_id)
    until(lambda: not alive(int(started.read_text())), "its program is gone")
    assert _job_kv.names_of(job_id) == ["plan"], "what a retry needs"
    assert joined_cluster.poll(job_id).status is JobStatus.FAILED
    joined_cluster.terminate(job_id)  # once more, and nothing happens


def test_prune_passes_over_a_job_whose_driver_is_not_gone(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch_another() -> None:
        from fray.cluster import Entrypoint, JobRequest, current_cluster

        current_cluster().launch(JobRequest("child", Entrypoint.from_binary("sleep", ["600"])))

    table = JobSubmissionClient(ray_cluster.dashboard)
    parent = joined_cluster.launch(JobRequest("parent", launch_another))
    assert joined_cluster.wait(parent, timeout=120).status is JobStatus.SUCCEEDED
    (child,) = joined_cluster.list_jobs(parent=parent)
    until(lambda: joined_cluster.poll(child.job_id).status is JobStatus.RUNNING, "the child runs", 120)
    submission = submission_of(child.job_id)
    until(lambda: table.get_job_status(parent).is_terminal(), "the parent's driver is gone")
    # As a driver that has written how its job ended, and hangs.
    TableEntry(submission).write(replace(joined_cluster.poll(child.job_id), status=JobStatus.SUCCEEDED))
    monkeypatch.setattr("fray_ray._launcher.cluster._OVER_WITHIN", 0.5)
    assert parent not in joined_cluster.prune().jobs
    assert joined_cluster.poll(parent).finished
    table.stop_job(submission)
    until(lambda: table.get_job_status(submission).is_terminal(), "its driver is gone")
    assert parent in joined_cluster.prune().jobs
