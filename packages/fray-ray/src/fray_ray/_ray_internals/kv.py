"""The key-value store of the head, and Ray's job table in it."""

import json
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


def kv_delete(key: str) -> None:
    """Delete a value of the head's key-value store. Read in Ray 2.60."""
    internal_kv._internal_kv_del(key)


def kv_list(prefix: str) -> list[str]:
    """Return the keys with a prefix in the head's key-value store. Read in Ray 2.60."""
    return [key.decode() for key in internal_kv._internal_kv_list(prefix)]


def table_entry(submission: str) -> dict[str, Any] | None:
    """Return an entry of Ray's job table as it is stored; None where there is none. Read in Ray 2.60."""
    data = kv_get(_table_key(submission), KV_NAMESPACE_JOB)
    return None if data is None else dict(json.loads(data))


def write_table_entry(submission: str, entry: dict[str, Any]) -> None:
    """Replace an entry of Ray's job table. Read in Ray 2.60: Ray itself writes at a job's start and end."""
    kv_put(_table_key(submission), json.dumps(entry).encode(), KV_NAMESPACE_JOB)


def _table_key(submission: str) -> str:
    from ray.dashboard.modules.job.common import JobInfoStorageClient  # imports much of the dashboard

    key: str = JobInfoStorageClient.JOB_DATA_KEY.format(job_id=submission)
    return key
