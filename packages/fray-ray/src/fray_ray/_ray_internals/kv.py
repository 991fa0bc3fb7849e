"""The key-value store of the head, and Ray's job table in it."""

import json
import time
from typing import Any

from ray._private.ray_constants import KV_NAMESPACE_JOB
from ray.experimental import internal_kv


def kv_get(key: str, namespace: bytes | None = None) -> bytes | None:
    """Return a value of the head's key-value store; None where there is none. Read in Ray 2.60."""
    value: bytes | None = internal_kv._internal_kv_get(key, namespace=namespace)
    return value


def kv_put(key: str, value: bytes, namespace: bytes | None = None) -> None:
    """Store a value in the head's key-value store. Read in Ray 2.60."""
    internal_kv._internal_kv_put(key, value, namespace=namespace)


def kv_delete(key: str, namespace: bytes | None = None) -> None:
    """Delete a value of the head's key-value store. Read in Ray 2.60."""
    internal_kv._internal_kv_del(key, namespace=namespace)


def kv_list(prefix: str) -> list[str]:
    """Return the keys with a prefix in the head's key-value store. Read in Ray 2.60."""
    return [key.decode() for key in internal_kv._internal_kv_list(prefix)]


def table_submissions(prefix: str) -> list[str]:
    """Return the ids with a prefix in Ray's job table. Read in Ray 2.60."""
    before = _table_key("")
    keys = internal_kv._internal_kv_list(before + prefix, namespace=KV_NAMESPACE_JOB)
    return [key.decode().removeprefix(before) for key in keys]


def table_entry(submission: str) -> dict[str, Any] | None:
    """Return an entry of Ray's job table as it is stored; None where there is none. Read in Ray 2.60."""
    data = kv_get(_table_key(submission), KV_NAMESPACE_JOB)
    return None if data is None else dict(json.loads(data))


def write_table_entry(submission: str, entry: dict[str, Any]) -> None:
    """Replace an entry of Ray's job table. Read in Ray 2.60: Ray itself writes at a job's start and end."""
    kv_put(_table_key(submission), json.dumps(entry).encode(), KV_NAMESPACE_JOB)


def waiting_table_entry(entrypoint: str, metadata: dict[str, str], node: str) -> dict[str, Any]:
    """Return an entry of Ray's job table for a job that Ray does not run yet. Read in Ray 2.60.

    Args:
        node: The node on which the job's log will be.
    """
    return {
        "status": "PENDING",
        "entrypoint": entrypoint,
        "message": "Job has not started yet.",
        "start_time": int(time.time() * 1000),
        "metadata": metadata,
        "driver_node_id": node,
    }


def settled_table_entry(entry: dict[str, Any], status: str, message: str) -> dict[str, Any]:
    """Return the entry of such a job as one that has ended before Ray ran it. Read in Ray 2.60."""
    return {**entry, "status": status, "message": message, "end_time": int(time.time() * 1000)}


def delete_table_entry(submission: str) -> None:
    """Delete an entry of Ray's job table, so that Ray takes a job of that id. Read in Ray 2.60."""
    kv_delete(_table_key(submission), KV_NAMESPACE_JOB)


def _table_key(submission: str) -> str:
    from ray.dashboard.modules.job.common import JobInfoStorageClient  # imports much of the dashboard

    key: str = JobInfoStorageClient.JOB_DATA_KEY.format(job_id=submission)
    return key
