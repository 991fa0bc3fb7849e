"""What reaches a job apart from what Ray lists: its plan, its variables, and the word to stop.

All go through the store of packages that the dashboard takes uploads for: memory of the head, behind
the same authentication as the jobs, never a file.
"""

from ray.experimental import internal_kv

LIMIT = 100 * 2**20  # bytes, of the dashboard


def plan_name(submission: str) -> str:
    """Return the name of the package that holds a job's plan."""
    return f"fray-{submission}.plan"


def stop_name(submission: str) -> str:
    """Return the name of the package that tells a job to stop; it holds the grace in seconds."""
    return f"fray-{submission}.stop"


def variables_name(submission: str) -> str:
    """Return the name of the package that holds the variables which the job's tasks find, pickled."""
    return f"fray-{submission}.environ"


def keep(name: str, data: bytes) -> None:
    """Store a package, inside the cluster."""
    internal_kv._internal_kv_put(f"gcs://{name}", data)


def fetch(name: str) -> bytes | None:
    """Return a package, inside the cluster; None where there is none."""
    data: bytes | None = internal_kv._internal_kv_get(f"gcs://{name}")
    return data


def delete(name: str) -> None:
    """Delete a package, inside the cluster."""
    internal_kv._internal_kv_del(f"gcs://{name}")
