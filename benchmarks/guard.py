"""Has something become half as fast? A few ratios to peers, each with a bound of twice the measured ratio.

python benchmarks/guard.py            all; ends with 1 if a ratio is over its bound in each of twelve attempts
python benchmarks/guard.py threads    one

It runs wherever the tests run, beside whatever else runs there, so it uses small sizes. Subject and peer take
turns in short pieces of the same process, and the shortest piece of each counts: what the machine does
besides makes a piece longer, never shorter. One attempt within the bound is enough, for what has become half
as fast has no such attempt. Figures for the record come from `suite.py`, on a quiet machine.
"""

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import queue_peers as peers
from measure import Timed, compile_packages, timed

from fray import create_context
from fray.cluster import Entrypoint, JobRequest, create_cluster
from fray_queue import HttpQueue, MemoryQueue, SqliteQueue

ATTEMPTS, ROUNDS = 12, 7
Pair = tuple[Timed, Timed]


def noop(value: Any) -> Any:
    return value


@contextmanager
def threads() -> Iterator[Pair]:
    """A task on threads, and a future of ThreadPoolExecutor."""
    with create_context("threadpool") as context, concurrent.futures.ThreadPoolExecutor() as executor:
        yield (
            lambda: timed(lambda: context.get([context.run(noop, number) for number in range(1000)])),
            lambda: timed(lambda: _results([executor.submit(noop, number) for number in range(1000)])),
        )


@contextmanager
def processes() -> Iterator[Pair]:
    """A task on worker processes, and a future of ProcessPoolExecutor."""
    with (
        create_context("process", max_workers=2) as context,
        concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as executor,
    ):
        yield (
            lambda: timed(lambda: context.get([context.run(noop, number) for number in range(300)])),
            lambda: timed(lambda: _results([executor.submit(noop, number) for number in range(300)])),
        )


@contextmanager
def leases() -> Iterator[Pair]:
    """Push, pop and done in memory, and the same by a deque, a dict and a lock."""
    queue: MemoryQueue[int] = MemoryQueue()
    line: deque[int] = deque()
    held: dict[int, int] = {}
    lock = threading.Lock()

    def ours() -> None:
        for number in range(300):
            queue.push(number)
            lease = queue.pop()
            assert lease is not None
            queue.done(lease)

    def by_hand() -> None:
        for number in range(300):
            with lock:
                line.append(number)
            with lock:
                held[number] = line.popleft()
            with lock:
                del held[number]

    yield (lambda: timed(ours), lambda: timed(by_hand))


@contextmanager
def server() -> Iterator[Pair]:
    """Push, pop and done at a server, and at bare aiohttp behind the same client."""
    bare = [sys.executable, "-c", peers.BARE_QUEUE]
    with (
        peers.server(lambda port: peers.fray_server(port)) as ours,
        peers.server(lambda port: [*bare, str(port)]) as same,
    ):
        yield (_cycles(ours), _cycles(same))


@contextmanager
def batches() -> Iterator[Pair]:
    """Items of a `sqlite:` queue one by one, and as many in one batch: what batches are for."""
    with tempfile.TemporaryDirectory() as folder:
        queue: SqliteQueue[bytes] = SqliteQueue(f"{folder}/q.db")

        def one_batch() -> None:
            queue.push_many([b"x" * 100] * 100)
            queue.done_many(queue.pop_many(100))

        def one_by_one() -> None:
            for _ in range(5):
                queue.push(b"x" * 100)
                lease = queue.pop()
                assert lease is not None
                queue.done(lease)

        yield (lambda: timed(one_batch) / 100, lambda: timed(one_by_one) / 5)


@contextmanager
def jobs() -> Iterator[Pair]:
    """A job of a command that does nothing, from launch to done, and a bare interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAY_STATE_DIR"] = folder
        cluster = create_cluster("local")
        request = JobRequest("nothing", Entrypoint.from_binary("true"))
        yield (
            lambda: timed(lambda: cluster.wait(cluster.launch(request), raise_on_failure=True)),
            lambda: timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
        )


@contextmanager
def imports() -> Iterator[Pair]:
    """`import fray_resources` in a fresh interpreter, and a bare one."""
    yield (
        lambda: timed(lambda: subprocess.run([sys.executable, "-c", "import fray_resources"], check=True)),
        lambda: timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
    )


def _results(futures: list[Any]) -> list[Any]:
    return [future.result() for future in futures]


def _cycles(port: int) -> Timed:
    """Return a piece of work with the queue of the server on a port."""
    queue: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "q")

    def cycles() -> None:
        for _ in range(10):
            queue.push(b"x" * 100)
            (lease,) = queue.pop_many(1)
            queue.done_many([lease])

    return lambda: timed(cycles)


# What is guarded, and the ratio that was measured; docs/performance.md has those of today.
RECORDED: dict[str, tuple[Callable[[], Any], float]] = {
    "threads": (threads, 0.45),
    "processes": (processes, 0.35),
    "leases": (leases, 7.0),
    "server": (server, 1.25),
    "batches": (batches, 0.05),
    "jobs": (jobs, 3.0),
    "imports": (imports, 1.3),
}
FACTOR = 2.0


def attempt(subject: Timed, peer: Timed) -> float:
    """Return the ratio of the shortest pieces of each."""
    pieces = [(subject(), peer()) for _ in range(ROUNDS)]
    return min(own for own, _ in pieces) / min(other for _, other in pieces)


def holds(name: str) -> bool:
    """Measure until one attempt is within the bound; print how it went."""
    make, recorded = RECORDED[name]
    ratios: list[float] = []
    with make() as (subject, peer):
        subject(), peer()  # what is started once is not measured
        while len(ratios) < ATTEMPTS and min(ratios, default=float("inf")) > FACTOR * recorded:
            ratios.append(attempt(subject, peer))
    held = min(ratios) <= FACTOR * recorded
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    about = (make.__doc__ or "").partition("\n")[0]
    print(f"{'ok  ' if held else 'SLOW'} {name:<10} {shown} (recorded {recorded}): {about}", flush=True)
    return held


def main() -> int:
    """Return how many are over their bound."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compile_packages("fray", "fray_local", "fray_queue", "fray_resources")
    return sum(not holds(name) for name in sys.argv[1:] or RECORDED)


if __name__ == "__main__":
    sys.exit(main())
