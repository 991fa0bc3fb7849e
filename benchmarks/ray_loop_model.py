"""What the scheduler's loop asks of Ray at sizes that no test machine has: 1,000 jobs, slices of 256 hosts.

The scheduler is the real one, with its line, its boards and what it keeps of each job. The cluster under it
is made up: it answers at once, and counts what it was asked. So calls a second are those of a real cluster,
and CPU and memory are the scheduler's own part, without Ray's.

Gangs wait for slices that are all taken, or run. The actors of those that run answer as the real ones do
whose programs print nothing: when they are asked for long enough, or have new samples of what is used.
"""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # nothing of Ray runs

import asyncio
import functools
import json
import pickle
import random
import resource
import socket
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
from fray_ray._head.job_process import END
from fray_ray._head.scheduler import Scheduler
from fray_ray._plan import Plan, hosts_of, labels_of
from fray_ray._queued_job import QueuedJob
from fray_ray._ray_internals.environment import JOB_CONFIG
from fray_ray._ray_internals.kv import waiting_table_entry, write_table_entry
from fray_ray._scheduler import socket_path

KIND, HOSTS = "v5p-2048", 256
SLICES = fewer(8, 2)
JOBS = fewer(1_000, 20)
SETTLES, WATCHED = fewer(30, 4), fewer(30, 2)  # seconds
_HEAD = "fray_ray._head"
_MIB = 1 << 20
# Of an attempt that has run for long: samples that its actor sends each time, and the seconds between two.
_SAMPLES, _SENDS_EVERY = 240, 30.0
_SEES_THAT_WITHIN = 0.2  # seconds in which the scheduler sees that the process of a job is gone


class MadeUpCluster:
    """What the scheduler finds instead of Ray: a store, and nodes of slices, which are all taken, or free.

    `calls` counts what was asked, by the name of the call; those of actors begin with `actor.`.
    """

    def __init__(self, *, taken: bool) -> None:
        self.calls: Counter[str] = Counter()
        self._taken, self._given, self._processes = taken, Counter[str](), list[socket.socket]()
        self._stored: dict[Any, dict[str, bytes]] = {}
        self._nodes = [_node(slice_, host) for slice_ in range(SLICES) for host in range(HOSTS)]
        free = {"CPU": 8.0, "memory": 2.0**36, "TPU": 0.0 if taken else 4.0}
        self._free = {node["NodeID"]: dict(free) for node in self._nodes}

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
            (f"{_HEAD}.reservation", "placement_group_table", self._table),
            (f"{_HEAD}.reservation", "remove_placement_group", lambda _: None),
        ]
        plain: list[tuple[Any, str, Any]] = [
            (ray, "get_runtime_context", lambda: context),
            (ray, "cluster_resources", lambda: {"CPU": 8.0 * len(self._nodes)}),
            (f"{_HEAD}.scheduler", "remove_abandoned_groups", lambda: None),
            (f"{_HEAD}.scheduler", "_client", lambda: self),
            (f"{_HEAD}.reservation", "_replica_actor", lambda: SimpleNamespace(options=self._actor_class)),
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

    def submit(self, command: str, submission: str, metadata: dict[str, str], _: Any) -> None:
        """Take a job, as Ray's dashboard does; its process connects to the scheduler."""
        self.calls["submit"] += 1
        entry = waiting_table_entry(command, metadata, "head") | {"status": "RUNNING"}
        write_table_entry(submission, entry)
        process = socket.socket(socket.AF_UNIX)
        process.connect(socket_path(ray.get_runtime_context().gcs_address))
        config = json.dumps({"metadata": {"job_submission_id": submission}})
        process.sendall(f"{submission}\0/\0{JOB_CONFIG}={config}".encode() + END)
        self._processes.append(process)

    def end_processes(self) -> None:
        """End the processes of all jobs."""
        for process in self._processes:
            process.close()

    def _group(self, *_: Any, name: str, **__: Any) -> Any:
        slice_ = len(self._given)
        self._given[name] = slice_
        if not self._taken:
            for host in range(HOSTS):
                self._free[_node_id(slice_, host)]["TPU"] = 0.0
        return SimpleNamespace(id=name.encode(), slice=slice_)

    def _table(self, group: Any) -> dict[str, Any]:
        if self._taken:
            return {"state": "PENDING"}
        places = {host: _node_id(group.slice, host) for host in range(HOSTS)}
        return {"state": "CREATED", "bundles_to_node_id": places}

    def _actor_class(self, *, scheduling_strategy: Any, **_: Any) -> Any:
        place = scheduling_strategy
        node = _node_id(place.placement_group.slice, place.placement_group_bundle_index)
        return SimpleNamespace(remote=lambda _: MadeUpActor(self.calls, node))


class MadeUpActor:
    """The actor of a replica that prints nothing."""

    def __init__(self, calls: Counter[str], node: str) -> None:
        self._calls, self._node = calls, node
        self._sends_at = time.monotonic() + random.uniform(0.0, _SENDS_EVERY)

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=functools.partial(self._call, method))

    def _call(self, method: str, *args: Any) -> "asyncio.Future[Any]":
        self._calls[f"actor.{method}"] += 1
        if method == "next":
            return asyncio.ensure_future(self._next(args[-1]))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result({"node_id": self._node, "free_ports": [9000, 9001, 9002, 9003]}.get(method))
        return answer

    async def _next(self, timeout: float) -> list[Any]:
        left = self._sends_at - time.monotonic()
        if left > timeout:
            await asyncio.sleep(timeout)
            return []
        await asyncio.sleep(max(0.0, left))
        self._sends_at = time.monotonic() + _SENDS_EVERY
        begin = time.time()
        lines = (f"{begin + each:.2f} {random.randrange(1 << 34)} {each:.2f}\n" for each in range(_SAMPLES))
        return [{"samples": "".join(lines)}]


def _node_id(slice_: int, host: int) -> str:
    return f"{slice_:03}-{host:03}"


def _node(slice_: int, host: int) -> dict[str, Any]:
    """Return a host of a slice, as Ray describes it; its chips are taken."""
    labels = {"slice-name": f"slice-{slice_}", "worker-id": str(host), "pod-type": KIND}
    return {
        "NodeID": _node_id(slice_, host),
        "NodeManagerAddress": "127.0.0.1",
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


async def _watched(cluster: MadeUpCluster, ready: Callable[[], bool]) -> tuple[Counter[str], float, float]:
    """Run the scheduler until all its jobs wait, or run; then watch it for a while.

    Returns:
        The calls in that while, the seconds of CPU in it, and the seconds until that was so.
    """
    begin = time.perf_counter()
    scheduler = asyncio.create_task(Scheduler().run(lambda: None))
    while not ready():
        await asyncio.sleep(0.1)
    shown = time.perf_counter() - begin
    await asyncio.sleep(SETTLES)
    before, cpu = cluster.calls.copy(), time.process_time()
    await asyncio.sleep(WATCHED)
    calls, seconds = cluster.calls - before, time.process_time() - cpu
    cluster.end_processes()
    await asyncio.sleep(_SEES_THAT_WITHIN)
    scheduler.cancel()
    return calls, seconds, shown


def observe(title: str, jobs: int, *, after: bool = False, sign: str | None = None) -> None:
    """Have so many jobs wait, or run, and print what the scheduler asks and takes.

    Args:
        after: Whether all but the first run after the first, and so are not in the line for room.
        sign: What the entry of one that waits has when that is shown; None for jobs that run.
    """
    cluster = MadeUpCluster(taken=sign is not None)
    with tempfile.TemporaryDirectory() as folder, cluster.in_place(folder):
        os.environ["RAY_TMPDIR"] = folder
        names: list[str] = []
        for number in range(jobs):
            names.append(cluster.queue(number, tuple(names[:1]) if after else ()))

        def ready() -> bool:
            if sign is not None:
                return sign in cluster.entry(names[-1])
            return cluster.calls["actor.start"] == jobs * HOSTS

        before = _resident()
        calls, cpu, shown = asyncio.run(_watched(cluster, ready))
        memory = _resident() - before
    rows = [(f"{name}, calls a second", brief(count / WATCHED)) for name, count in sorted(calls.items())]
    of_nodes = sum(count for name, count in calls.items() if name.startswith("actor."))
    columns(
        title,
        ["figure"],
        [
            *rows,
            ("all calls of the head a second", brief((sum(calls.values()) - of_nodes) / WATCHED)),
            ("all calls of actors a second", brief(of_nodes / WATCHED)),
            ("of one core, %", brief(100 * cpu / WATCHED)),
            ("memory of the jobs, MiB", brief(memory)),
            ("until the last says for what it waits, or runs, s", brief(shown)),
        ],
    )


def _resident() -> float:
    """Return the most MiB that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MIB


def main() -> None:
    slices = f"a cluster of {SLICES} slices of {HOSTS} hosts"
    for jobs in dict.fromkeys((1, SLICES)):  # first: what is asked later has had memory that is free again
        observe(f"{jobs:,} that run, each on a slice, on {slices}", jobs)
    for jobs in (1, JOBS):
        observe(f"{jobs:,} that wait for a slice, on {slices}", jobs, after=False, sign="the cluster has")
    observe(f"{JOBS:,} of which all but one run after it", JOBS, after=True, sign="runs after")


if __name__ == "__main__":
    main()
