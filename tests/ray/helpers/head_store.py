"""What the head's memory holds of jobs."""

from collections.abc import Callable
from typing import Any

import ray.experimental.internal_kv
import requests

from fray_ray.testing import LocalRayCluster

kv: Any = ray.experimental.internal_kv
_NAMESPACES = None, b"job", b"fun"  # of packages, of Ray's job table, of functions and classes
_KINDS = (
    "plan",
    "state",
    "waiting",
    "queued",
    "environ",
    "secrets",
    "workspace.zip",
    "stop",
    "stopping",
    "forget",
)


def package(cluster: LocalRayCluster, job_id: str, kind: str) -> str:
    """The URL of what the head's memory holds of a job."""
    return f"{cluster.dashboard}/api/packages/gcs/fray-{job_id}.{kind}"


def stored(cluster: LocalRayCluster, job_id: str) -> list[str]:
    """What the head's memory holds of the runs of a job."""
    runs = (f"{job_id}{again}" for again in ("", "-r2", "-r3"))
    urls = [package(cluster, run, kind) for run in runs for kind in _KINDS]
    return [url for url in urls if requests.get(url, timeout=30).status_code == requests.codes.ok]


def entries_with(word: str) -> set[str]:
    """The keys of the head's store, which this process has joined, whose values hold a word."""
    keys = kv._internal_kv_list("")
    stored = ((key, kv._internal_kv_get(key, namespace=space)) for key in keys for space in _NAMESPACES)
    return {key.decode() for key, value in stored if word.encode() in (value or b"")}


def restoring_entry(job_id: str) -> Callable[[], None]:
    """Return what writes the entry of a job into Ray's table once more, as it is now."""
    key = f"_ray_internal_job_info_{job_id}"
    entry = kv._internal_kv_get(key, namespace=b"job")
    return lambda: kv._internal_kv_put(key, entry, namespace=b"job")
