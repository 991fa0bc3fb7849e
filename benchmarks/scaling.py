"""How the cost of each backend grows: bytes, files and processes for each task, item, job and replica more.

python benchmarks/scaling.py                  everything that this machine has the servers for
python benchmarks/scaling.py tasks_process    one

Each size is measured in a program of its own, with all processes that it starts; a slope is what two sizes
differ in, divided by how many more there are. Memory is proportional (PSS): pages that processes share
are counted once. Slopes do not depend on what else the machine does, so this needs no quiet one.
`scaling_page.py` makes docs/scaling.md of them.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"  # of a private cluster; read when Ray is imported

import psutil
import queue_peers as peers
from measure import available, brief, columns, fewer, missing, slope_noted

from fray import JobContext, create_context
from fray.cluster import Entrypoint, JobRequest, ResourceConfig, create_cluster
from fray.queue import open_queue

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "queue" / "helpers"))

MARK = "FRAY_SCALING_MARK"
PAYLOAD = b"x" * 100
Figures = dict[str, float]


def memory() -> float:
    """Return the proportional memory of this program and all that it has started, daemons included."""
    mark = os.environ[MARK]
    total = 0.0
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.environ().get(MARK) == mark:
                total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def processes() -> int:
    """Return how many processes this program has started and not yet ended."""
    mark = os.environ[MARK]
    return sum(_marked(process, mark) for process in psutil.process_iter())


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def disk(folder: str | Path) -> Figures:
    """Return the bytes of the blocks that a folder's files take, and how many files there are."""
    found = [path.lstat() for path in Path(folder).rglob("*") if path.is_file()]
    seen = {status.st_ino: status.st_blocks * 512 for status in found}
    return {"disk": float(sum(seen.values())), "files": float(len(seen))}


def wait_for(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.05)


def noop(number: int, gate: str = "") -> int:
    if gate:
        wait_for(gate)
    return number


class Empty:
    def method(self) -> int:
        return 1


def tasks(context: JobContext, count: int, folder: str) -> Figures:
    """Tasks that wait behind others which take every worker."""
    gate = f"{folder}/gate"
    first = [context.run(noop, 0, gate) for _ in range(4)]
    refs = [context.run(noop, number) for number in range(count)]
    found = {"memory": memory()}
    Path(gate).touch()
    context.get(first + refs)
    return found


def values(context: JobContext, count: int, _: str) -> Figures:
    """Small values of `put` that are still referred to."""
    refs = [context.put(number) for number in range(count)]
    return {"memory": memory(), "kept": float(len(refs))}


def actors(context: JobContext, count: int, _: str) -> Figures:
    handles = [context.create_actor(Empty) for _ in range(count)]
    context.get([handle.method() for handle in handles])
    return {"memory": memory(), "processes": float(processes()), "threads": float(threading.active_count())}


def on(
    opened: Callable[[], AbstractContextManager[JobContext]],
    measure: Callable[[JobContext, int, str], Figures],
) -> Callable[[int, str], Figures]:
    """Return a measure with the context that it is taken on."""

    def measured(count: int, folder: str) -> Figures:
        with opened() as context:
            return measure(context, count, folder)

    return measured


def two_threads() -> AbstractContextManager[JobContext]:
    return create_context("threadpool", max_workers=2)


def threads() -> AbstractContextManager[JobContext]:
    return create_context("threadpool")


def workers() -> AbstractContextManager[JobContext]:
    return create_context("process", max_workers=2)


@contextmanager
def ray() -> Iterator[JobContext]:
    with ray_cluster() as (context, _):
        yield context


def fill(queue: Any, count: int) -> None:
    for _ in range(count // 500):
        queue.push_many([PAYLOAD] * 500)


def items_memory(count: int, _: str) -> Figures:
    queue = open_queue("memory:")
    fill(queue, count)
    return {"memory": memory()}


def items_sqlite(count: int, folder: str) -> Figures:
    fill(open_queue(f"sqlite:{folder}/q.db"), count)
    return {"memory": memory(), **disk(folder)}


def items_file(count: int, folder: str) -> Figures:
    queue = open_queue(f"file:{folder}/q?fsync=false")
    for _ in range(count):
        queue.push(PAYLOAD)
    return {"memory": memory(), **disk(folder)}


def items_server(count: int, _: str) -> Figures:
    with peers.server(lambda port: peers.fray_server(port)) as port:
        fill(open_queue(f"http://127.0.0.1:{port}/q"), count)
        return {"memory": memory()}


def items_server_store(count: int, folder: str) -> Figures:
    with peers.server(lambda port: peers.fray_server(port, "--store", f"{folder}/s")) as port:
        fill(open_queue(f"http://127.0.0.1:{port}/q"), count)
        return {"memory": memory(), **disk(folder)}


def items_redis(count: int, folder: str) -> Figures:
    import redis
    from engine_servers import RedisServer

    with RedisServer(Path(folder) / "redis", "--appendonly", "no") as server:
        fill(open_queue(f"redis://127.0.0.1:{server.port}/0?queue=q"), count)
        return {"memory": float(redis.Redis(port=server.port).info("memory")["used_memory"])}


def items_postgresql(count: int, folder: str) -> Figures:
    from engine_servers import PostgresServer

    with PostgresServer(Path(folder) / "postgres", "fsync=off") as server:
        fill(open_queue(f"{server.url}?queue=q"), count)
        ((size,),) = server.sql("SELECT pg_total_relation_size('fray.items')")
        return {"disk": float(size)}


def jobs_records(count: int, folder: str) -> Figures:
    """Finished jobs, each of one replica that wrote a line."""
    cluster = create_cluster("local?overcommit=true")
    ids = [cluster.launch(JobRequest("job", Entrypoint.from_binary("echo", ["line"]))) for _ in range(count)]
    cluster.wait(ids, raise_on_failure=True)
    return disk(f"{folder}/state/jobs")


def jobs_running(count: int, folder: str) -> Figures:
    """Jobs of one replica that sleep: what is beside the program itself."""
    cluster = create_cluster("local?overcommit=true")
    ids = [cluster.launch(JobRequest("job", sleeping(folder))) for _ in range(count)]
    return measured_jobs(cluster, ids, count, folder)


def replicas_running(count: int, folder: str) -> Figures:
    """Replicas of one job that sleep."""
    cluster = create_cluster("local?overcommit=true")
    resources = ResourceConfig(cpu=0.01, ram="16m", replicas=count)
    ids = [cluster.launch(JobRequest("job", sleeping(folder), resources=resources))]
    found = measured_jobs(cluster, ids, count, folder)
    return found | {
        "status": float((Path(folder) / "state" / "jobs" / ids[0] / "status.json").stat().st_size)
    }


def jobs_ray(count: int, folder: str) -> Figures:
    """Jobs of one replica that sleep, on a Ray of one node: all of Ray's and Fray's processes."""
    with ray_cluster() as (_, cluster):
        small = ResourceConfig(cpu=0.1, ram="64m")
        ids = [cluster.launch(JobRequest("job", sleeping(folder), resources=small)) for _ in range(count)]
        return measured_jobs(cluster, ids, count, folder)


def sleeping(folder: str) -> Entrypoint:
    """Return a program that says that it is there, and sleeps until it is stopped."""
    return Entrypoint.from_binary("sh", ["-c", f"touch {folder}/up-$$; exec sleep 600"])


def measured_jobs(cluster: Any, ids: list[Any], running: int, folder: str) -> Figures:
    while len(list(Path(folder).glob("up-*"))) < running:
        time.sleep(0.1)
    time.sleep(1.0)  # supervisors release what they needed for the start
    found = {"memory": memory(), "processes": float(processes())}
    for job_id in ids:
        cluster.terminate(job_id)
    cluster.wait(ids)
    return found


def logs(megabytes: int, folder: str) -> Figures:
    """The log of one replica."""
    from fray.backend import LogWriter

    log = LogWriter(f"{folder}/log", limit=None)
    for _ in range(megabytes * 10):
        log.write((b"x" * 99 + b"\n") * 1000)
    log.close()
    return disk(folder)


@contextmanager
def ray_cluster() -> Iterator[tuple[JobContext, Any]]:
    from fray_ray import RayCluster
    from fray_ray.testing import LocalRayCluster

    with (
        LocalRayCluster(num_cpus=2, fast_workers=False) as cluster,
        create_context(f"ray?address={cluster.address}") as context,
    ):
        yield context, RayCluster(cluster.address)


# What is measured: the function, two sizes, the unit.
MEASURED: dict[str, tuple[Callable[[int, str], Figures], tuple[int, int], str]] = {
    "tasks_threadpool": (on(two_threads, tasks), (5_000, 50_000), "waiting task"),
    "tasks_process": (on(workers, tasks), (5_000, 50_000), "waiting task"),
    "values_threadpool": (on(threads, values), (5_000, 50_000), "small value"),
    "values_process": (on(workers, values), (5_000, 50_000), "small value"),
    "actors_threadpool": (on(threads, actors), (10, 200), "actor"),
    "actors_process": (on(workers, actors), (2, 12), "actor"),
    "items_memory": (items_memory, (5_000, 50_000), "item of 100 B"),
    "items_sqlite": (items_sqlite, (5_000, 50_000), "item of 100 B"),
    "items_file": (items_file, (500, 3_000), "item of 100 B"),
    "items_server": (items_server, (5_000, 50_000), "item of 100 B"),
    "items_server_store": (items_server_store, (100_000, 300_000), "item of 100 B"),
    "items_redis": (items_redis, (5_000, 50_000), "item of 100 B"),
    "items_postgresql": (items_postgresql, (5_000, 50_000), "item of 100 B"),
    "jobs_records": (jobs_records, (2, 22), "finished job"),
    "jobs_running": (jobs_running, (2, 22), "running job"),
    "replicas_running": (replicas_running, (2, 42), "running replica"),
    "logs": (logs, (1, 51), "MB of log"),
    "tasks_ray": (on(ray, tasks), (1_000, 6_000), "waiting task"),
    "actors_ray": (on(ray, actors), (1, 4), "actor"),
    "jobs_ray": (jobs_ray, (1, 4), "running job"),
}
NEEDED = {"items_redis": "redis-server", "items_postgresql": "pg_ctlcluster"}


def one(name: str, count: int) -> Figures:
    """Measure one size in a program of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {MARK: uuid.uuid4().hex, "FRAY_STATE_DIR": f"{folder}/state"}
        program = [sys.executable, __file__, "--one", name, str(count), folder]
        done = subprocess.run(
            program, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True
        )
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def slope(name: str) -> dict[str, float]:
    """Return what each more costs."""
    _, (few, many), _ = MEASURED[name]
    if fewer(1, 0) == 0:
        many = few + max((many - few) // 5, 1)
    small, large = one(name, few), one(name, many)
    return {what: (large[what] - small[what]) / (many - few) for what in small if what != "kept"}


def main() -> None:
    """Print a row for each, and note the slopes."""
    if sys.argv[1:2] == ["--one"]:
        name, count, folder = sys.argv[2:]
        print(json.dumps(MEASURED[name][0](int(count), folder)))
        return
    rows = []
    for name in sys.argv[1:] or MEASURED:
        if name in NEEDED and not available(name, program=NEEDED[name]):
            continue
        try:
            found = slope(name)
        except subprocess.CalledProcessError as error:
            missing(name, f"its program ended with code {error.returncode}")
            continue
        for what, more in found.items():
            slope_noted(name, what, more)
            rows.append((name, MEASURED[name][2], what, brief(more)))
            print(*rows[-1], flush=True)
    columns("What each more costs", ["for each", "of", "bytes, or how many"], rows)


if __name__ == "__main__":
    main()
