"""Ray Data inside the placement group of a gang: its tasks run on what the job reserved, and nowhere else.

    python examples/ray_data_in_gang.py --cluster 'ray?address=HOST:6379' --replicas 2 --rows 1000

Replica 0 is the program that uses Ray Data; the places of the other replicas are there for its tasks. Needs
`pip install 'ray[data]'` on the nodes.
"""

import argparse
from typing import Any

from fray import Entrypoint, JobRequest, ResourceConfig, create_cluster


def in_group(batch: dict[str, Any]) -> dict[str, Any]:
    """Square the ids, and say where that was done."""
    import numpy as np
    from ray.util import get_current_placement_group

    group = get_current_placement_group()
    name = "" if group is None else group.id.hex()
    return {"square": batch["id"] ** 2, "group": np.full(len(batch["id"]), name)}


def work(rows: int, cpus: float) -> None:
    import os

    import ray
    from ray.data import DataContext, ExecutionResources
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from fray_ray import current_placement_group

    if os.environ["FRAY_REPLICA_ID"] != "0":
        return
    group = current_placement_group()
    assert group is not None
    settings = DataContext.get_current()
    settings.enable_progress_bars = False
    settings.scheduling_strategy = PlacementGroupSchedulingStrategy(group)
    settings.execution_options.resource_limits = ExecutionResources(cpu=cpus)
    squares = ray.data.range(rows, override_num_blocks=2).map_batches(in_group).to_pandas()
    inside = int((squares["group"] == group.id.hex()).sum())
    print(f"sum of squares: {squares['square'].sum()}; rows made inside the group: {inside} of {rows}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", default="ray")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000)
    args = parser.parse_args()
    request = JobRequest(
        "ray-data",
        Entrypoint.from_callable(work, args=(args.rows, 2.0 * args.replicas)),
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
