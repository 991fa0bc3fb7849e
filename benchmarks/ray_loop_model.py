"""What the scheduler's loop asks of Ray at sizes that no test machine has: 1,000 jobs, slices of 256 hosts.

The scheduler is the real one, with its line, its boards and what it keeps of each job. The cluster under it
is made up: it answers at once, and counts what it was asked. So calls a second are those of a real cluster,
and CPU and memory are the scheduler's own part, without Ray's.
"""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # nothing of Ray runs

import asyncio
import pickle
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ray
from measure import brief, columns, fewer
from ray._private.state import state
from ray.experimental import internal_kv

from fray.cluster import ResourceConfig, TpuConfig
from fray_ray import _job_kv
from fray_ray._head.scheduler import Scheduler
from fray_ray._plan import Plan, hosts_of, labels_of
from fray_ray._queued_job import QueuedJob

KIND, HOSTS = "v5p-2048", 256
SLICES = fewer(8, 2)
JOBS = fewer(1_000, 20)
SETTLES, WATCHED = fewer(30, 4), fewer(30, 2)  # seconds
_HEAD = "fray_ray._head"
_MIB = 1 << 20


class MadeUpCluster:
    """What the scheduler finds instead of Ray: a store, nodes of slices that are all taken, and no room.

    `calls` counts what was asked, by the name of the call.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._stored: dict[Any, dict[str, bytes]] = {}
        self._nodes = [_node(slice_, host) for slice_ in range(SLICES) for host in range(HOSTS)]
        self._free = {node["NodeID"]: {"CPU": 8.0, "memory": 2.0**36} for node in self._nodes}

    def queue(self, number: int, after: tuple[str, ...]) -> str:
        """Have a job in the store, as a launch leaves it."""
        name = f"train-{number:06x}"
        plan = _plan(name, float(number), after)
        own = {
            "fray.job_id": name,
            "fray.name": "train",
            "fray.replicas": str(plan.replicas),
            "fray.tries": "1",
        }
        queued = QueuedJob(command="train", metadata=own, runtime_env={})
        self._put(f"gcs://{_job_kv.plan_name(name)}", pickle.dumps(plan))
        self._put(f"gcs://{_job_kv.queued_name(name)}", queued.to_json())
        return name

    def entry(self, name: str) -> str:
        """Return the text of a job's entry in Ray's table."""
        return self._stored.get(b"job", {}).get(f"_ray_internal_job_info_{name}", b"").decode()

    @contextmanager
    def in_place(self, folder: str) -> Iterator[None]:
        """Have it in the place of Ray."""
        context = SimpleNamespace(gcs_address=folder, get_node_id=lambda: "head", get_job_id=lambda: "01")
        logs = SimpleNamespace(get_logs_dir_path=lambda: folder)
        counted: list[tuple[Any, str, Callable[..., Any]]] = [
            (internal_kv, "_internal_kv_get", lambda key, namespace=None: self._of(namespace).get(key)),
            (internal_kv, "_internal_kv_put", self._put),
            (internal_kv, "_internal_kv_del", lambda key, namespace=None: self._of(namespace).pop(key, None)),
            (internal_kv, "_internal_kv_list", self._list),
            (ray, "nodes", self._living),
            (state, "available_resources_per_node", lambda: self._free),
            (state, "get_draining_nodes", dict),
            (f"{_HEAD}.placement", "placement_group", self._group),
            (f"{_HEAD}.reservation", "placement_group_table", lambda _: {"state": "PENDING"}),
            (f"{_HEAD}.reservation", "remove_placement_group", lambda _: None),
        ]
        plain: list[tuple[Any, str, Any]] = [
            (ray, "get_runtime_context", lambda: context),
            (ray, "cluster_resources", lambda: {"CPU": 8.0 * len(self._nodes)}),
            (f"{_HEAD}.scheduler", "remove_abandoned_groups", lambda: None),
            ("ray._private.worker", "_global_node", logs),
            ("ray._private.auto_init_hook", "enable_auto_connect", False),
        ]
        with ExitStack() as stack:
            for where, name, answer in [*((o, n, self._counting(n, a)) for o, n, a in counted), *plain]:
                target = patch(f"{where}.{name}", answer) if isinstance(where, str) else None
                stack.enter_context(target or patch.object(where, name, answer))
            yield

    def _counting(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name.removeprefix("_internal_")] += 1
            return answer(*args, **kwargs)

        return call

    def _living(self) -> list[dict[str, Any]]:
        """Return the nodes, every other second without the last: what jobs wait for changes by that."""
        return self._nodes[: len(self._nodes) - int(time.monotonic()) % 2]

    def _of(self, namespace: bytes | None) -> dict[str, bytes]:
        return self._stored.setdefault(namespace, {})

    def _put(self, key: str, value: bytes, namespace: bytes | None = None) -> None:
        self._of(namespace)[key] = value

    def _list(self, prefix: str, namespace: bytes | None = None) -> list[bytes]:
        return [key.encode() for key in self._of(namespace) if key.startswith(prefix)]

    @staticmethod
    def _group(*_: Any, name: str, **__: Any) -> Any:
        return SimpleNamespace(id=name.encode())


def _node(slice_: int, host: int) -> dict[str, Any]:
    """Return a host of a slice, as Ray describes it; its chips are taken."""
    labels = {"slice-name": f"slice-{slice_}", "worker-id": str(host), "pod-type": KIND}
    return {
        "NodeID": f"{slice_:03}-{host:03}",
        "Alive": True,
        "Labels": {f"ray.io/tpu-{name}": value for name, value in labels.items()},
        "Resources": {"CPU": 8.0, "memory": 2.0**36, "TPU": 4.0},
    }


def _plan(name: str, at: float, after: tuple[str, ...]) -> Plan:
    resources = ResourceConfig(cpu=1, ram="1g", device=TpuConfig(KIND), preemptible=True)
    return Plan(
        job_id=name,
        submission=name,
        submitted_at=at,
        name="train",
        choices=(1,),
        hosts=hosts_of(resources),
        gang=True,
        resources=resources,
        labels=labels_of(resources),
        command=("train",),
        payload=None,
        environ={},
        secrets=(),
        cwd=None,
        pip=(),
        max_retries_failure=0,
        max_retries_preemption=100,
        timeout=None,
        placement_timeout=None,
        after=after,
    )


async def _watched(cluster: MadeUpCluster, last: str, sign: str) -> tuple[Counter[str], float, float]:
    """Run the scheduler until its last job is shown as one that waits; then watch it for a while.

    Returns:
        The calls in that while, the seconds of CPU in it, and the seconds until the last job was shown.
    """
    begin = time.perf_counter()
    scheduler = asyncio.create_task(Scheduler().run(lambda: None))
    while sign not in cluster.entry(last):
        await asyncio.sleep(0.1)
    shown = time.perf_counter() - begin
    await asyncio.sleep(SETTLES)
    before, cpu = cluster.calls.copy(), time.process_time()
    await asyncio.sleep(WATCHED)
    scheduler.cancel()
    return cluster.calls - before, time.process_time() - cpu, shown


def observe(title: str, jobs: int, *, after: bool, sign: str) -> None:
    """Have so many jobs wait, and print what the scheduler asks and takes.

    Args:
        after: Whether all but the first run after the first, and so are not in the line for room.
    """
    cluster = MadeUpCluster()
    with tempfile.TemporaryDirectory() as folder, cluster.in_place(folder):
        os.environ["RAY_TMPDIR"] = folder
        names: list[str] = []
        for number in range(jobs):
            names.append(cluster.queue(number, tuple(names[:1]) if after else ()))
        before = _resident()
        calls, cpu, shown = asyncio.run(_watched(cluster, names[-1], sign))
        memory = _resident() - before
    rows = [(f"{name}, calls a second", brief(count / WATCHED)) for name, count in sorted(calls.items())]
    columns(
        title,
        ["figure"],
        [
            *rows,
            ("all calls a second", brief(sum(calls.values()) / WATCHED)),
            ("of one core, %", brief(100 * cpu / WATCHED)),
            ("memory of the jobs, MiB", brief(memory)),
            ("until the last says for what it waits, s", brief(shown)),
        ],
    )


def _resident() -> float:
    """Return the most MiB that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MIB


def main() -> None:
    slices = f"a cluster of {SLICES} slices of {HOSTS} hosts"
    for jobs in (1, JOBS):
        observe(f"{jobs:,} that wait for a slice, on {slices}", jobs, after=False, sign="the cluster has")
    observe(f"{JOBS:,} of which all but one run after it", JOBS, after=True, sign="runs after")


if __name__ == "__main__":
    main()
