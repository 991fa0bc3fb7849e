"""What the head's memory holds of jobs."""

import requests

from fray_ray.testing import LocalRayCluster

_KINDS = ("plan", "state", "queued", "environ", "secrets", "workspace.zip", "stop", "stopping", "forget")


def package(cluster: LocalRayCluster, job_id: str, kind: str) -> str:
    """The URL of what the head's memory holds of a job."""
    return f"{cluster.dashboard}/api/packages/gcs/fray-{job_id}.{kind}"


def stored(cluster: LocalRayCluster, job_id: str) -> list[str]:
    """What the head's memory holds of the runs of a job."""
    runs = (f"{job_id}{again}" for again in ("", "-r2", "-r3"))
    urls = [package(cluster, run, kind) for run in runs for kind in _KINDS]
    return [url for url in urls if requests.get(url, timeout=30).status_code == requests.codes.ok]
