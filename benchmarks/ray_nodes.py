"""What a gang across many nodes costs, and how it comes back after a node is lost: `ray_nodes.py [NODES …]`.

All nodes are processes of this machine. So the times are those of its few cores, and no network is measured.
"""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # of a private cluster; read when Ray is imported
os.environ["RAY_raylet_start_wait_time_s"] = "300"  # noqa: SIM112 - how Ray spells it

import contextlib
import statistics
import sys
import time
from collections.abc import Callable

import psutil
from measure import columns, fewer, timed

from fray.cluster import Entrypoint, JobInfo, JobRequest, JobStatus, ResourceConfig
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

_MIB = 1 << 20
_WITHIN = 600.0  # seconds
_PROGRAM = Entrypoint.from_binary("sleep", ["3600"])


def memory(temporary: str) -> float:
    """Return the MiB of all processes of the cluster: each one's own and its share of what it shares."""
    total = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAY_TMPDIR") == temporary and process.pid != os.getpid():
                total += process.memory_full_info().pss
    return total / _MIB


def await_job(cluster: RayCluster, job_id: str, condition: Callable[[JobInfo], bool]) -> None:
    deadline = time.monotonic() + _WITHIN
    while not condition(info := cluster.poll(job_id)):
        if info.finished or time.monotonic() > deadline:
            sys.exit(f"the gang does not run: {info}")
        time.sleep(0.1)


def all_run(attempt: int) -> Callable[[JobInfo], bool]:
    return lambda info: all(
        task.status is JobStatus.RUNNING and task.attempt >= attempt for task in info.tasks
    )


def look(read: Callable[[], object]) -> str:
    """Return the median time of a read over HTTP, in ms."""
    return f"{statistics.median(timed(read) for _ in range(10)) * 1e3:,.0f}"


def measure(nodes: int) -> tuple[str, ...]:
    """Return the figures of a cluster of so many nodes beside its head, with a replica of a gang on each."""
    with LocalRayCluster(num_cpus=0, fast_workers=False) as ray_cluster:
        temporary = os.environ["RAY_TMPDIR"]
        start = time.perf_counter()
        for _ in range(nodes):
            ray_cluster.add_node(num_cpus=1)
        started = time.perf_counter() - start
        idle = memory(temporary)
        print(f"{nodes} nodes after {started:.1f} s, {idle:,.0f} MiB", flush=True)
        with RayCluster(ray_cluster.address) as cluster:
            each = ResourceConfig(cpu=1, ram="64m", replicas=nodes)
            request = JobRequest("gang", _PROGRAM, resources=each, gang=True)
            start = time.perf_counter()
            job_id = cluster.launch(request)
            launched = time.perf_counter() - start
            await_job(cluster, job_id, all_run(1))
            runs = time.perf_counter() - start
            busy = memory(temporary)
            print(f"the gang runs after {runs:.1f} s, {busy:,.0f} MiB", flush=True)
            poll, listing = look(lambda: cluster.poll(job_id)), look(cluster.list_jobs)
            _, doomed, *_ = ray_cluster.node_ids()
            ray_cluster.add_node(num_cpus=1)
            start = time.perf_counter()
            ray_cluster.kill_node(doomed)
            await_job(cluster, job_id, all_run(2))
            recovered = time.perf_counter() - start
            print(f"and again {recovered:.1f} s after a node was killed", flush=True)
            ended = timed(lambda: cluster.terminate(job_id, grace=0.0))
    figures = started, idle, launched, runs, busy, recovered, ended
    cells = [f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}" for figure in figures]
    return (f"{nodes} nodes, a replica on each", *cells, poll, listing)


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or [fewer(12, 4)]
    names = [
        "nodes start, s",
        "MiB idle",
        "launch, s",
        "all run, s",
        "MiB",
        "again, s",
        "terminate, s",
        "poll, ms",
        "list, ms",
    ]
    columns("A gang across the nodes of a cluster", names, [measure(nodes) for nodes in sizes])


if __name__ == "__main__":
    main()
