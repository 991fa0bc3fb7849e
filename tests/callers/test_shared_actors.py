"""An RL loop whose workers share named actors: as tasks on every context, as jobs on every cluster."""

from pathlib import Path

from shared_actors import LESSONS, coordinate, learn_in_tasks

from fray.cluster import Cluster, Entrypoint, JobRequest, ResourceConfig
from fray.job import JobContext


def test_tasks_share_actors(context: JobContext, tmp_path: Path) -> None:
    assert learn_in_tasks(context, tmp_path) == LESSONS
    curriculum = context.get_actor("curriculum")
    assert context.get(curriculum.sample_lesson.remote()) is None


def test_jobs_share_actors(cluster: Cluster, tmp_path: Path) -> None:
    root = JobRequest(
        name="rl:experiment",
        entrypoint=Entrypoint.from_callable(coordinate, kwargs={"folder": str(tmp_path), "rollouts": 2}),
        resources=ResourceConfig(cpu=0.1, ram="64m"),
    )
    job_id = cluster.launch(root)
    log = cluster.monitor(job_id)
    assert log.status == "succeeded", log.error_message
    lines = list(cluster.monitor(job_id))
    assert {"rl:train succeeded", "rl:rollout/0 succeeded", "rl:rollout/1 succeeded"} <= set(lines)
    children = [info for info in cluster.list_jobs() if info.job_id.startswith(f"{job_id}/")]
    (train,) = [info for info in children if info.name == "rl:train"]
    assert f"trained to version {LESSONS}" in list(cluster.monitor(train.job_id))
