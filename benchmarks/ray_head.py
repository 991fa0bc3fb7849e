"""What jobs on Ray cost the head: running jobs, waiting jobs, and polls among many finished jobs.

Goal: a running job costs the head at most 25 MiB beyond what the same costs by hand, which is Ray's own
supervisor of it and the program. All is on one machine; what a cluster has on other nodes is not counted.
"""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # of a private cluster; read when Ray is imported

import contextlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import ray
from measure import at_most, columns, fewer, interleave, judge, timed
from ray.experimental import internal_kv
from ray.job_submission import JobSubmissionClient

from fray.cluster import Entrypoint, JobId, JobRequest, JobStatus, ResourceConfig, TaskStatus
from fray_ray import RayCluster
from fray_ray._job_table import state_metadata
from fray_ray.testing import LocalRayCluster

_MIB = 1 << 20
_SETTLES = 5.0  # seconds after the last start
_LOOK, _STEADY = 2.0, 1.0  # seconds between looks at a cluster without jobs; MiB by which two may differ
# What runs on other nodes of a real cluster, with all that it starts, and workers that wait for any work.
_ELSEWHERE = ("ray::ReplicaActor", "_on_node.process_supervisor", "ray::IDLE")
_OF_JOBS = ("JobSupervisor", "job_process")  # what runs on the head for a job alone
_PROCESS = "a process for each job that stands for it in Ray's table, and the shell that starts it again"
_AT_ONCE = 16  # launches
_names = itertools.count()
_SLEEP = Entrypoint.from_binary("sleep", ["600"])
_SMALL = ResourceConfig(cpu=0.01, ram="16m")
_NO_ROOM = ResourceConfig(cpu=1_000)
Cost = tuple[float, int, int]
"""MiB (each process's own and its share of what it shares), threads, processes."""


def processes(temporary: str) -> Iterator[tuple[str, psutil.Process]]:
    """Give the processes of a cluster, but this one, each with its command line."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAY_TMPDIR") == temporary and process.pid != os.getpid():
                yield " ".join(process.cmdline()), process


def of_the_head(temporary: str) -> list[psutil.Process]:
    """Return the processes of a cluster that are its head's.

    The program of a job by hand is, and so is Fray's shell, whose command line has the same words.
    """
    found = {process.pid: (line, process) for line, process in processes(temporary)}

    def is_elsewhere(pid: int) -> bool:
        line, process = found.get(pid, ("", None))
        if process is None or any(name in line for name in _ELSEWHERE):
            return process is not None
        with contextlib.suppress(psutil.Error):
            return is_elsewhere(process.ppid())
        return True  # it has just ended

    return [process for pid, (_, process) in found.items() if not is_elsewhere(pid)]


def cost(temporary: str) -> Cost:
    """Return what all processes of a cluster take that are its head's."""
    memory, threads, count = 0.0, 0, 0
    for process in of_the_head(temporary):
        with contextlib.suppress(psutil.Error):
            memory += process.memory_full_info().pss / _MIB
            threads += process.num_threads()
            count += 1
    return memory, threads, count


def cost_without_jobs(temporary: str) -> Cost:
    """Return what a cluster takes when nothing of its last jobs is left, which Ray ends a little later."""
    wait_for(lambda: not any(name in line for line, _ in processes(temporary) for name in _OF_JOBS))
    found = cost(temporary)
    while True:
        time.sleep(_LOOK)
        last, found = found, cost(temporary)
        if found[1:] == last[1:] and abs(found[0] - last[0]) < _STEADY:
            return found


def scheduler_cost(temporary: str) -> tuple[str, str, str]:
    """Return what the scheduler of a cluster takes, which serves all jobs."""
    for line, process in processes(temporary):
        if "SchedulerActor" in line:
            return f"{process.memory_full_info().pss / _MIB:.1f}", str(process.num_threads()), "1"
    raise RuntimeError("the cluster has no scheduler")


def by_hand(client: JobSubmissionClient) -> Callable[[int], Callable[[], None]]:
    def start(count: int) -> Callable[[], None]:
        ids = [
            client.submit_job(entrypoint="sleep 600", submission_id=f"h{next(_names)}") for _ in range(count)
        ]
        wait_for(lambda: all(client.get_job_status(one) == "RUNNING" for one in ids))

        def stop() -> None:
            for one in ids:
                client.stop_job(one)
            wait_for(lambda: all(client.get_job_status(one).is_terminal() for one in ids))

        return stop

    return start


def by_fray(cluster: RayCluster) -> Callable[[int], Callable[[], None]]:
    def start(count: int) -> Callable[[], None]:
        ids = [cluster.launch(JobRequest("bench", _SLEEP, resources=_SMALL)) for _ in range(count)]
        wait_for(lambda: all(cluster.poll(one).status is JobStatus.RUNNING for one in ids))

        def stop() -> None:
            for one in ids:
                cluster.terminate(one, grace=0.0)

        return stop

    return start


def waiting(cluster: RayCluster) -> Callable[[int], Callable[[], None]]:
    """Jobs for which the cluster has no room."""

    def start(count: int) -> Callable[[], None]:
        request = JobRequest("bench", _SLEEP, resources=_NO_ROOM)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            ids = list(pool.map(lambda _: cluster.launch(request), range(count)))
        wait_for(lambda: "room" in (cluster.poll(ids[-1]).pending_reason or ""))

        def stop() -> None:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(lambda one: cluster.terminate(one, grace=0.0), ids))

        return stop

    return start


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.2)


def measured(temporary: str, start: Callable[[int], Callable[[], None]], count: int) -> Cost:
    """Return what so many jobs add to what the cluster takes without them."""
    before = cost_without_jobs(temporary)
    stop = start(count)
    time.sleep(_SETTLES)
    after = cost(temporary)
    stop()
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


def used(task: TaskStatus, replica: int) -> TaskStatus:
    """Return a replica that is like another, with times and figures of its own."""
    chance = random.Random(replica)
    return replace(
        task,
        replica=replica,
        started_at=(task.started_at or 0.0) + chance.random(),
        finished_at=(task.finished_at or 0.0) + chance.random(),
        peak_memory=chance.randrange(1 << 34),
        cpu_time=chance.random(),
    )


def finished_jobs(cluster: RayCluster, count: int, replicas: int) -> str:
    """Fill Ray's job table with jobs that have ended, copies of one; return the id of one."""
    job_id = cluster.launch(JobRequest("ended", Entrypoint.from_binary("true"), resources=_SMALL))
    cluster.wait(job_id, raise_on_failure=True)
    key = next(
        name.decode()
        for name in internal_kv._internal_kv_list("", namespace=b"job")
        if name.decode().endswith(job_id)
    )
    data: Any = internal_kv._internal_kv_get(key, namespace=b"job")
    ended = cluster.poll(job_id)
    for number in range(count):
        entry, own = json.loads(data), f"ended-{number:06}"
        tasks = [used(ended.tasks[0], replica) for replica in range(replicas)]
        info = replace(ended, job_id=JobId(own), tasks=tuple(tasks))
        entry["metadata"] |= {"fray.job_id": own, **state_metadata(info)}
        internal_kv._internal_kv_put(key.replace(job_id, own), json.dumps(entry).encode(), namespace=b"job")
    return "ended-000000"


def main() -> None:
    with LocalRayCluster(num_cpus=2, memory=64 << 30, fast_workers=False) as ray_cluster:
        temporary = os.environ["RAY_TMPDIR"]
        ray.init(ray_cluster.address, log_to_driver=False)
        client, cluster = JobSubmissionClient(ray_cluster.dashboard), RayCluster(ray_cluster.address)
        hand, fray = by_hand(client), by_fray(cluster)
        measured(temporary, fray, 1)  # what the first job of a cluster starts stays
        rows, each = [], {}
        for count in (1, fewer(10, 2), fewer(30, 3)):
            for name, start in (("by hand", hand), ("fray", fray)):
                memory, threads, processes = measured(temporary, start, count)
                each[name] = memory / count
                figures = f"{memory / count:.1f}", f"{threads / count:.1f}", f"{processes / count:.1f}"
                rows.append((f"{count} running, {name}: of each", *figures))
        rows.append(("the scheduler", *scheduler_cost(temporary)))
        jobs = fewer(1_000, 20)
        memory, threads, processes = measured(temporary, waiting(cluster), jobs)
        rows.append((f"{jobs} that wait for room: all", f"{memory:.1f}", str(threads), str(processes)))
        columns("What jobs take of the head", ["MiB", "threads", "processes"], rows)
        beyond = each["fray"] - each["by hand"]
        judge("Memory of a running job beyond that by hand", beyond, at_most(25, _PROCESS), " MiB")
        ended = fewer(1_000, 20)
        one = finished_jobs(cluster, ended, 256)
        looks = {
            "poll one of them": lambda: timed(lambda: cluster.poll(one)),
            "list all": lambda: timed(cluster.list_jobs),
            "list all by hand": lambda: timed(client.list_jobs),
        }
        medians = interleave(looks, rounds=5)
        cells = [(name, f"{median * 1e3:,.1f}") for name, median in medians.items()]
        columns(f"Looks beside {ended} jobs of 256 replicas that ended", ["ms"], cells)


if __name__ == "__main__":
    main()
