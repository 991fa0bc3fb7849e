"""A long life: after very many jobs, tasks, actors and clients the process holds what it held before.

A tenth of it, unless SOAK says otherwise: `nox -s soak` does all. Every part warms up first, with a part
of the same work: what a library makes once and keeps is no leak.
"""

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import create_context
from fray.cluster import Entrypoint, JobRequest, ResourceConfig, create_cluster
from fray.queue import open_queue
from fray.testing.leaks import own_temporary_folder, remaining, snapshot  # noqa: F401
from fray_queue import HttpQueueServer, MemoryQueue

SCALE = float(os.environ.get("SOAK", "0.1"))
MAY_GROW = 4 << 20
"""Bytes that the process may have more after the last quarter than after the second."""
BATCH = 100

Run = Callable[[int], None]
"""Does that many of a thing, and leaves nothing of them."""


def resident() -> int:
    """The memory of this process that is not swapped out, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(what: str, number: int, run: Run) -> None:
    """Do a thing so often, in four quarters; before and after are the same."""
    quarter = max(1, round(number * SCALE / 4))
    run(max(2, quarter // 10))
    before, started, memory = snapshot(), time.monotonic(), []
    for _ in range(4):
        run(quarter)
        memory.append(resident())
    took = time.monotonic() - started
    left = remaining(before)
    grown = memory[3] - memory[1]
    shown = (
        f"{len(before)} things held before, {len(left)} more after; {grown / 2**20:+.1f} MiB in the last half"
    )
    print(f"\n{4 * quarter:,} {what} in {took:.1f} s: {shown}")
    assert not left, "left behind:\n" + "\n".join(sorted(left))
    assert grown <= MAY_GROW, [size >> 20 for size in memory]


@pytest.fixture(autouse=True)
def surroundings(
    own_temporary_folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FRAY_STATE_DIR", str(tmp_path / "state"))


def batches(number: int) -> Iterator[range]:
    return (range(start, min(start + BATCH, number)) for start in range(0, number, BATCH))


@pytest.mark.parametrize("spec", ["sync", "threadpool?max_workers=4", "process?max_workers=2"])
def test_tasks(spec: str) -> None:
    def run(number: int) -> None:
        for batch in batches(number):
            assert context.get([context.run(abs, -n) for n in batch]) == list(batch)

    with create_context(spec) as context:
        soak(f"tasks on {spec}", 100_000, run)


@pytest.mark.parametrize(
    ("spec", "number"), [("sync", 1000), ("threadpool?max_workers=4", 1000), ("process?max_workers=2", 1000)]
)
def test_actors(spec: str, number: int) -> None:
    def run(number: int) -> None:
        for n in range(number):
            actor = context.create_actor(Counter, x=n)  # one that no process imports pytest for
            assert context.get(actor.total.remote()) == n
            context.kill(actor)

    with create_context(spec) as context:
        soak(f"actors on {spec}", number, run)


def test_jobs(tmp_path: Path) -> None:
    request = JobRequest(
        name="soak", entrypoint=Entrypoint.from_binary("true"), resources=ResourceConfig(cpu=0.1, ram="16m")
    )

    def run(number: int) -> None:
        for start in range(0, number, 10):
            ids = [cluster.launch(request) for _ in range(min(10, number - start))]
            infos = cluster.wait(ids, timeout=100)
            assert all(str(info.status) == "succeeded" for info in infos)

    cluster = create_cluster("local?overcommit=true&keep_jobs=50")
    soak("jobs on local", 1000, run)


def use_queue(url: str) -> None:
    queue: Any = open_queue(url)
    with queue:
        queue.push("x")
        lease = queue.pop()
        assert lease is not None
        queue.done(lease)


def test_openings_of_queues(tmp_path: Path) -> None:
    def memory(number: int) -> None:
        for _ in range(number):
            MemoryQueue[str]().push("x")

    def opened(url: str) -> Run:
        def run(number: int) -> None:
            for _ in range(number):
                use_queue(url)

        return run

    soak("openings of a MemoryQueue", 1000, memory)
    soak("openings of a FileQueue", 1000, opened(f"file:{tmp_path}/queue"))
    with HttpQueueServer() as server:
        server.new_queue("q").close()
        soak("openings of an HttpQueue", 1000, opened(f"{server.url}/q"))


@pytest.mark.parametrize(
    ("spec", "number"), [("sync", 1000), ("threadpool?max_workers=2", 1000), ("process?max_workers=1", 100)]
)
def test_openings_of_contexts(spec: str, number: int) -> None:
    def run(number: int) -> None:
        for n in range(number):
            with create_context(spec) as context:
                assert context.get(context.run(abs, -n)) == n

    soak(f"openings of {spec}", number, run)


def test_openings_of_a_cluster() -> None:
    def run(number: int) -> None:
        for _ in range(number):
            assert list(create_cluster("local").list_jobs()) == []

    soak("openings of local, read", 1000, run)
