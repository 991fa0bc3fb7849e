"""The options of a cluster's spec for every job: `slurm?partition=gpu&account=x&qos=high&constraint=a100`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fray.backend import invalid
from fray_slurm._signalling import DEFAULT_GRACE

_OPTION = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")

# Options of sbatch that Fray gives a meaning of its own: a request sets these in another way, or not at all.
OWNED: Mapping[str, str] = {
    "array": "launch_many",
    "batch": "the first node runs the supervisor",
    "chdir": "create_environment(workspace=...)",
    "clusters": "the option `cluster` of the spec",
    "comment": "labels=",
    "cpus-per-task": "ResourceConfig(cpu=...)",
    "dependency": "after=",
    "error": "the job's logs",
    "export": "create_environment(env_vars=...)",
    "export-file": "create_environment(env_vars=...)",
    "get-user-env": "create_environment(env_vars=...)",
    "hold": "launch the job when it may start",
    "input": "the entry point's arguments",
    "job-name": "JobRequest(name=...)",
    "kill-on-invalid-dep": "the job ends as it is",
    "no-requeue": "max_retries_preemption=0",
    "nodes": "ResourceConfig(replicas=...) and replicas_per_node",
    "ntasks": "ResourceConfig(replicas=...)",
    "ntasks-per-node": "replicas_per_node",
    "open-mode": "the job's logs",
    "output": "the job's logs",
    "parsable": "the job's id",
    "quiet": "the job's id",
    "requeue": "max_retries_preemption=",
    "signal": "the option `grace` of the spec; the notice is SIGTERM",
    "test-only": "SlurmCluster.batch_script(request)",
    "wait": "cluster.wait(job_id)",
    "wrap": "the entry point",
}


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """The options of a spec that become options of every job; a request's own win over them.

    Args:
        preemptible_partition: The partition of requests with `preemptible=True`, where it is another.
        region_constraint: Whether names of regions are features of nodes, so that `regions` can be requested.
        grace: Seconds before the time limit at which replicas get SIGTERM; Slurm may send it earlier.
    """

    partition: str | None = None
    preemptible_partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    time: str | None = None
    cluster: str | None = None
    region_constraint: bool = False
    grace: int = DEFAULT_GRACE


def native_options(given: Mapping[str, Any]) -> tuple[dict[str, str | None], int]:
    """Check `backend={"slurm": {...}}`; return sbatch's options, and how many replicas a node has of GPUs.

    Keys are long options of sbatch, with `-` or `_`; True stands for one without a value.

    Raises:
        ValueError: A key is none, or one that Fray sets; or a value cannot be written in a script.
    """
    found: dict[str, str | None] = {}
    per_node = 1
    for key, value in given.items():
        if key == "replicas_per_node":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise invalid("backend['slurm']['replicas_per_node']", "a whole number of 1 or more", value)
            per_node = value
            continue
        name = key.replace("_", "-") if isinstance(key, str) and _OPTION.fullmatch(key) else ""
        if not name:
            raise invalid("each key of backend['slurm']", "a long option of sbatch, such as 'nodelist'", key)
        if name in OWNED:
            raise ValueError(
                f"backend['slurm'] cannot set {key!r}, which Fray sets itself: use {OWNED[name]}"
            )
        if value is None or value is False:
            continue
        text = None if value is True else str(value)
        if text is not None and (not text.isprintable() or "'" in text):
            raise invalid(f"backend['slurm'][{key!r}]", "printable text without quotes", value)
        found[name] = text
    return found, per_node
