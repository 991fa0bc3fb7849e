"""What a job started beside its replicas, and ends with it: jobs, drivers of Ray, detached actors."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray._private.state import state
from ray._private.worker import global_worker

from fray.cluster import poll_delays
from fray_ray._launcher.lookup import latest

_GONE_WITHIN = 10.0  # seconds


def end_family(job_id: str, submission: str, grace: float) -> None:
    """Stop the jobs below a job, end its detached actors, and wait until Ray has ended its workers.

    Args:
        submission: What Ray calls this run of the job.
    """
    # Here alone: Ray's client of jobs takes half as long to import as Ray, and few jobs are stopped.
    from fray_ray._launcher.jobs_client import JobsClient
    from fray_ray._launcher.stopping import stop_job

    client = JobsClient(ray.get_runtime_context().gcs_address)
    running = [
        entry.submission
        for info, entry in latest(client.entries()).values()
        if not info.finished and info.job_id.startswith(f"{job_id}/")
    ]
    if running:
        with ThreadPoolExecutor(len(running)) as pool:
            list(pool.map(lambda child: stop_job(client, child, grace), running))
    _end_detached_actors(submission)
    _await_workers(submission)


def _drivers(submission: str) -> dict[str, bool]:
    """The ids of the drivers that ran as part of a job, this one left out, and whether each has ended."""
    own = ray.get_runtime_context().get_job_id()
    worker: Any = global_worker
    jobs = worker.gcs_client.get_all_job_info(job_or_submission_id=submission)
    return {job_id.hex(): job.is_dead for job_id, job in jobs.items() if job_id.hex() != own}


def _end_detached_actors(submission: str) -> None:
    """End the actors that drivers of the job made, by their ids: those without a name have no handle."""
    drivers = _drivers(submission)
    actors: Any = state.actor_table(None)
    left = [one["ActorID"] for one in actors.values() if one["JobID"] in drivers and one["State"] != "DEAD"]
    if not left:
        return
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    messages: Any = gcs_service_pb2
    services: Any = gcs_service_pb2_grpc
    with init_grpc_channel(ray.get_runtime_context().gcs_address) as channel:
        gcs = services.ActorInfoGcsServiceStub(channel)
        for actor_id in map(bytes.fromhex, left):
            request = messages.KillActorViaGcsRequest(actor_id=actor_id, force_kill=True, no_restart=True)
            gcs.KillActorViaGcs(request, timeout=_GONE_WITHIN)


def _await_workers(submission: str) -> None:
    deadline = time.monotonic() + _GONE_WITHIN
    for delay in poll_delays():
        if all(_drivers(submission).values()) or time.monotonic() > deadline:
            return
        time.sleep(delay)
