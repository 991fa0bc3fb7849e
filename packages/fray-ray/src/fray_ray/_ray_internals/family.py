"""The drivers of one Ray job, and the actors that they made: those without a name too."""

from collections.abc import Iterable
from typing import Any

import ray
from ray._private.state import state
from ray._private.worker import global_worker


def drivers_of(submission: str) -> dict[str, bool]:
    """Return the ids of the drivers that ran as part of a submitted job, and whether each has ended.

    Read in Ray 2.60.
    """
    worker: Any = global_worker
    jobs = worker.gcs_client.get_all_job_info(job_or_submission_id=submission)
    return {job_id.hex(): bool(job.is_dead) for job_id, job in jobs.items()}


def supervisor_is_gone(submission: str) -> bool:
    """Return whether Ray has no supervisor of a job. It makes one for each job. Read in Ray 2.60."""
    from ray.dashboard.modules.job import common  # imports much of the dashboard

    name = common.JOB_ACTOR_NAME_TEMPLATE.format(job_id=submission)
    try:
        ray.get_actor(name, common.SUPERVISOR_ACTOR_RAY_NAMESPACE)
    except ValueError:
        return True
    return False


def living_actors_of(drivers: Iterable[str]) -> list[str]:
    """Return the ids of the actors that drivers have made and that have not ended. Read in Ray 2.60."""
    made_by, actors = set(drivers), state.actor_table(None)
    rows: Any = actors.values()
    return [one["ActorID"] for one in rows if one["JobID"] in made_by and one["State"] != "DEAD"]


def kill_actors(actor_ids: Iterable[str], timeout: float) -> None:
    """End actors by their ids: those without a name have no handle. Read in Ray 2.60.

    Args:
        timeout: Seconds within which the head answers for each.
    """
    ended = [bytes.fromhex(actor_id) for actor_id in actor_ids]
    if not ended:
        return
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    messages: Any = gcs_service_pb2
    services: Any = gcs_service_pb2_grpc
    with init_grpc_channel(ray.get_runtime_context().gcs_address) as channel:
        gcs = services.ActorInfoGcsServiceStub(channel)
        for actor_id in ended:
            request = messages.KillActorViaGcsRequest(actor_id=actor_id, force_kill=True, no_restart=True)
            gcs.KillActorViaGcs(request, timeout=timeout)
