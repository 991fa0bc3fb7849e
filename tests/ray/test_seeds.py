"""The examples of the seeds that name no backend or name Ray, as they are written there."""

from typing import Any

import pytest
import ray as typed_ray

from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types


@pytest.fixture(autouse=True)
def driver(ray_cluster: LocalRayCluster) -> None:
    ray.init(ray_cluster.address, ignore_reinit_error=True, log_to_driver=False)


class StatusActor:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def test_seed_000_a_context_with_options_of_ray_remote() -> None:
    from fray import create_context

    ctx = create_context("ray", memory=2 * 1024**3, num_cpus=2)

    ref = ctx.put({"data": [1, 2, 3]})
    future = ctx.run(lambda x: sum(x["data"]), ref)
    result = ctx.get(future)  # Returns 6
    assert result == 6
    ctx.shutdown()


def test_seed_001_tasks_and_actors_of_the_current_context() -> None:
    from fray import ActorOptions, Lifetime, TaskOptions, get_job_context

    ctx = get_job_context()

    def my_task(x: int) -> int:
        return x * 2

    ref: Any = ctx.create_task(my_task, 5)
    result = ctx.get(ref)  # Returns 10
    assert result == 10

    class Counter:
        def __init__(self, start: int = 0) -> None:
            self.count = start

        def increment(self) -> int:
            self.count += 1
            return self.count

    # Simple actor
    actor = ctx.create_actor(Counter, kwargs={"start": 5})
    ref = actor.increment()
    value = ctx.get(ref)  # Returns 6
    assert value == 6

    # Actor with options (detached lifetime, specific resources)
    options = ActorOptions(
        name="status_actor",
        get_if_exists=True,  # Reuse if exists
        lifetime=Lifetime.DETACHED,  # Survives beyond job
        resources={"CPU": 0, "head_node": 0.0001},  # Schedule on head node
    )
    status_actor = ctx.create_actor(StatusActor, options=options)
    head = next(node["NodeID"] for node in ray.nodes() if "head_node" in node["Resources"])
    assert ctx.get(status_actor.node()) == head
    assert ctx.create_actor(StatusActor, options=options) == status_actor
    ctx.kill(status_actor)

    task_options = TaskOptions(resources={"CPU": 2, "memory": 8 * 1024**2})
    assert ctx.get(ctx.create_task(my_task, 5, options=task_options)) == 10


@pytest.mark.filterwarnings("ignore:.* is an older spelling of:DeprecationWarning")
def test_seed_002_actors_that_a_train_job_and_its_rollouts_share() -> None:
    from fray.job import create_job_ctx, fray_default_job_ctx, get_default_job_ctx

    class Curriculum:
        def __init__(self, lessons: int) -> None:
            self.lessons = lessons

        def sample_lesson(self) -> int:
            return self.lessons

    with create_job_ctx("ray") as context, fray_default_job_ctx(context):
        curriculum = get_default_job_ctx().create_actor(
            Curriculum, 3, name="curriculum", get_if_exists=True, preemptible=False, num_cpus=0
        )
        future = curriculum.sample_lesson.remote()
        assert get_default_job_ctx().get(future) == 3
