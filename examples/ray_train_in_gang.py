"""Ray Train inside the placement group of a gang: its workers are in the places that the job reserved.

    python examples/ray_train_in_gang.py --cluster 'ray?address=HOST:6379' --storage /shared/runs

Replica 0 is the program that uses Ray Train; its workers fit a line by gradient descent, and average their
gradients in an async actor. No framework is needed. Needs `pip install 'ray[train]'` on the nodes.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from fray import Entrypoint, JobRequest, ResourceConfig, create_cluster, create_context

SLOPE, INTERCEPT = 3.0, 2.0


class Averages:
    """Gives to each worker, for each step, the mean of what all of them brought."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._brought: dict[int, list[list[float]]] = {}
        self._means: dict[int, asyncio.Future[list[float]]] = {}

    async def mean(self, step: int, values: list[float]) -> list[float]:
        means = self._means.setdefault(step, asyncio.get_running_loop().create_future())
        brought = self._brought.setdefault(step, [])
        brought.append(values)
        if len(brought) == self._workers:
            means.set_result([sum(column) / self._workers for column in zip(*brought, strict=True)])
            self._brought.pop(step)
        return await means


def fit(config: dict[str, Any]) -> None:
    """Fit a line to this worker's points; what every worker of Ray Train runs."""
    import ray
    from ray import train

    me = train.get_context()
    averages, slope, intercept = config["averages"], 0.0, 0.0
    points = [number / 10 for number in range(me.get_world_rank(), 20, me.get_world_size())]
    for step in range(config["steps"]):
        errors = [(x, slope * x + intercept - (SLOPE * x + INTERCEPT)) for x in points]
        gradient = [sum(x * error for x, error in errors), sum(error for _, error in errors)]
        by_slope, by_intercept = ray.get(averages.mean(step, gradient))
        slope, intercept = slope - 0.03 * by_slope, intercept - 0.03 * by_intercept
    held: dict[str, float] = ray.get_runtime_context().get_assigned_resources()  # type: ignore[no-untyped-call]
    fitted = {"slope": slope, "intercept": intercept, "in_group": config["in_group"].items() <= held.items()}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "line.json").write_text(json.dumps(fitted), encoding="utf-8")
        first = me.get_world_rank() == 0
        train.report(fitted, checkpoint=train.Checkpoint.from_directory(folder) if first else None)


def work(storage: str, workers: int, steps: int) -> None:
    import os

    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from fray_ray import resources_in_current_group

    if os.environ["FRAY_REPLICA_ID"] != "0":
        return
    # Ray Train starts its workers again when they are not there after a minute, which a busy machine takes.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    with create_context("ray?placement_group=current") as context:
        averages = context.create_actor(Averages, workers)
        in_group = resources_in_current_group({"CPU": 1})
        trainer = DataParallelTrainer(
            fit,
            train_loop_config={"averages": averages, "in_group": in_group, "steps": steps},
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker=in_group),
            run_config=RunConfig(storage_path=storage, name=os.environ["FRAY_JOB_ID"]),
        )
        saved = trainer.fit().checkpoint
        assert saved is not None
        with saved.as_directory() as folder:
            line = json.loads(Path(folder, "line.json").read_text(encoding="utf-8"))
        where = "inside" if line["in_group"] else "outside"
        print(f"y = {line['slope']:.2f} x + {line['intercept']:.2f}, fitted {where} of the group")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", default="ray")
    parser.add_argument("--storage", default=tempfile.gettempdir())
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    request = JobRequest(
        "ray-train",
        Entrypoint.from_callable(work, args=(args.storage, args.replicas, args.steps)),
        resources=ResourceConfig(cpu=2, replicas=args.replicas),
        gang=True,
    )
    cluster = create_cluster(args.cluster)
    job_id = cluster.launch(request)
    try:
        cluster.wait(job_id, stream_logs=True, raise_on_failure=True)
    finally:
        cluster.terminate(job_id)  # one that has ended stays as it is


if __name__ == "__main__":
    main()
