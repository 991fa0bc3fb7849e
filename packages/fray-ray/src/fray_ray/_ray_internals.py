"""What is not Ray's public API: one function each, with the version of Ray that it was read in."""

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

import ray
from ray._private.ray_constants import KV_NAMESPACE_JOB
from ray.exceptions import RayTaskError
from ray.experimental import internal_kv

from fray_ray._options import Sender

_HEAD, _TAIL = 4_000, 12_000  # characters of an error's text: who failed last, and where it all began


def bound_error_texts() -> None:
    """Let the text of a failure that runs down a chain of tasks stop growing.

    Read in Ray 2.60: a task whose argument failed fails with the text of that failure below its own, so a
    chain of n tasks stores and formats n * n lines (24 s for 2,000 tasks). Longer ones are cut in the middle.
    """
    whole: Callable[[Any], str] = RayTaskError.__str__
    if hasattr(whole, "__wrapped__"):
        return

    @wraps(whole)
    def text(self: Any) -> str:
        traceback_text = self.traceback_str
        if len(traceback_text) <= _HEAD + _TAIL:
            return whole(self)
        cut = len(traceback_text) - _HEAD - _TAIL
        self.traceback_str = f"{traceback_text[:_HEAD]}\n  [{cut} characters cut]\n{traceback_text[-_TAIL:]}"
        try:
            return whole(self)
        finally:
            self.traceback_str = traceback_text

    RayTaskError.__str__ = text  # type: ignore[method-assign]


_READ = "2.60."  # the versions of Ray whose internals `_direct_calls` uses


def task_sender(function: Any, options: dict[str, Any]) -> Sender:
    """Return what submits a remote function under options, as its `remote` does and faster where it can."""
    remote = function.options(**options).remote

    def by_ray(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return remote(*args, **kwargs)

    if not ray.__version__.startswith(_READ):
        return by_ray
    from fray_ray._direct_calls import task_sender as direct

    return direct(function, options, by_ray) or by_ray


def actor_sender(handle: Any, method: str) -> Sender:
    """Return what calls a method of an actor, as its `remote` does and faster where it can."""
    bound = getattr(handle, method)

    def by_ray(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return bound.remote(*args, **kwargs)

    if not ray.__version__.startswith(_READ):
        return by_ray
    from fray_ray._direct_calls import actor_sender as direct

    return direct(handle, bound, by_ray) or by_ray


def kv_get(key: str, namespace: bytes | None = None) -> bytes | None:
    """Return a value of the head's key-value store. Read in Ray 2.60, as all that follow for that store."""
    value: bytes | None = internal_kv._internal_kv_get(key, namespace=namespace)
    return value


def kv_put(key: str, value: bytes, namespace: bytes | None = None) -> None:
    """Store a value in the head's key-value store."""
    internal_kv._internal_kv_put(key, value, namespace=namespace)


def kv_delete(key: str) -> None:
    """Delete a value of the head's key-value store."""
    internal_kv._internal_kv_del(key)


def kv_list(prefix: str) -> list[str]:
    """Return the keys with a prefix in the head's key-value store."""
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


def driver_log(submission: str) -> str:
    """Return where Ray writes what a job's driver prints, on this node. Read in Ray 2.60."""
    node: Any = ray._private.worker._global_node
    return f"{node.get_logs_dir_path()}/job-driver-{submission}.log"


def usage_log(submission: str) -> str:
    """Return where a job's driver writes what it uses, on this node: where the dashboard reads logs out."""
    node: Any = ray._private.worker._global_node
    return f"{node.get_logs_dir_path()}/{usage_name(submission)}"


def usage_name(submission: str) -> str:
    """Return the name of that file."""
    return f"fray-usage-{submission}.txt"
