"""Reinforcement learning: a train worker and rollout workers that share a curriculum and the weights.

The workers find both actors by name. They run as jobs of a cluster, or as tasks of one context.
"""

import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fray.cluster import Entrypoint, JobRequest, ResourceConfig, current_cluster
from fray.job import JobContext, get_default_job_ctx

LESSONS = 3
BATCHES_A_LESSON = 4
PATIENCE = 60.0  # seconds without a rollout, after which training gives up


class Curriculum:
    """What rollouts practise; moves on when the train worker says so."""

    def __init__(self, lessons: int) -> None:
        self.lessons = lessons
        self.current = 0
        self.stats: list[float] = []

    def sample_lesson(self) -> int | None:
        """Return the lesson to practise, None when all are learnt."""
        return self.current if self.current < self.lessons else None

    def update_lesson_stats(self, lesson: int, reward: float) -> None:
        """Take note of a rollout."""
        if lesson == self.current:
            self.stats.append(reward)

    def learnt(self, lesson: int) -> int:
        """Move on from a lesson and return how many rollouts it took."""
        self.current = lesson + 1
        taken, self.stats = len(self.stats), []
        return taken


class WeightCoordinator:
    """The latest weights."""

    def __init__(self) -> None:
        self.version, self.weights = 0, b""

    def publish(self, weights: bytes) -> int:
        """Replace the weights and return their version."""
        self.version, self.weights = self.version + 1, weights
        return self.version

    def latest(self) -> tuple[int, bytes]:
        """Return the version and the weights."""
        return self.version, self.weights


def shared(context: JobContext) -> tuple[Any, Any]:
    """Return the actors that all workers share, made by the first that asks."""
    curriculum = context.create_actor(
        Curriculum, LESSONS, name="curriculum", get_if_exists=True, preemptible=False, num_cpus=0
    )
    weights = context.create_actor(
        WeightCoordinator, name="weights", get_if_exists=True, preemptible=False, num_cpus=0
    )
    return curriculum, weights


def rollout_once(context: JobContext, folder: Path, worker: int, step: int) -> bool:
    """Play one episode and write it; False when there is nothing left to learn."""
    curriculum, weights = shared(context)
    lesson = context.get(curriculum.sample_lesson.remote())
    if lesson is None:
        return False
    version, _ = context.get(weights.latest.options(enable_task_events=False).remote())
    path = folder / f"{lesson}-{worker}-{step}.pickle"
    temporary = path.with_suffix(".part")
    temporary.write_bytes(pickle.dumps({"lesson": lesson, "version": version, "reward": lesson + step}))
    temporary.rename(path)
    context.get(curriculum.update_lesson_stats.remote(lesson, float(step)))
    return True


def train_once(context: JobContext, folder: Path, lesson: int) -> bool:
    """Learn a lesson when enough rollouts of it were written."""
    curriculum, weights = shared(context)
    batches = [pickle.loads(path.read_bytes()) for path in sorted(folder.glob(f"{lesson}-*.pickle"))]
    if len(batches) < BATCHES_A_LESSON:
        return False
    context.get(weights.publish.remote(pickle.dumps([batch["reward"] for batch in batches])))
    context.get(curriculum.learnt.remote(lesson))
    return True


def rollout_worker(folder: str, worker: int) -> None:
    """Play until all is learnt: the body of a rollout job."""
    context, step = get_default_job_ctx(), 0
    while rollout_once(context, Path(folder), worker, step):
        step += 1
        time.sleep(0.01)


def train_worker(folder: str) -> None:
    """Learn all lessons: the body of the train job."""
    context, deadline = get_default_job_ctx(), time.monotonic() + PATIENCE
    for lesson in range(LESSONS):
        while not train_once(context, Path(folder), lesson):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rollouts of lesson {lesson}")
            time.sleep(0.01)
    _, weights = shared(context)
    print("trained to version", context.get(weights.latest.remote())[0], flush=True)


def coordinate(folder: str, rollouts: int) -> None:
    """Launch a train job and its rollout jobs, which share the actors of this one; the body of a root job."""
    shared(get_default_job_ctx())
    cluster = current_cluster()
    small = ResourceConfig(cpu=0.1, ram="64m")
    jobs = [
        cluster.launch(
            JobRequest(
                name="rl:train",
                entrypoint=Entrypoint(callable=train_worker, function_args={"folder": folder}),
                resources=small,
            )
        ),
        *(
            cluster.launch(
                JobRequest(
                    name=f"rl:rollout/{worker}",
                    entrypoint=Entrypoint.from_callable(rollout_worker, args=[folder, worker]),
                    resources=small,
                )
            )
            for worker in range(rollouts)
        ),
    ]
    finished: Sequence[Any] = cluster.wait(jobs, raise_on_failure=True)
    print(*(f"{info.name} {info.status}" for info in finished), sep="\n", flush=True)


def learn_in_tasks(context: JobContext, folder: Path) -> int:
    """Do the same with tasks of one context, turn by turn; return the version of the last weights."""
    _, weights = shared(context)
    for lesson in range(LESSONS):
        step = 0
        while not context.get(context.run(train_once, context, folder, lesson, name=f"train:{lesson}")):
            played = [context.run(rollout_once, context, folder, worker, step) for worker in range(2)]
            ready, pending = context.wait(played, num_returns=len(played))
            assert not pending
            context.get(ready)
            step += 1
    version: int = context.get(weights.latest.remote())[0]
    return version
