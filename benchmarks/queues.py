"""What an item costs in each queue, for push, pop and done together, compared with other queues.

Needs beanstalkd and redis-server, and `pip install greenstalk redis persist-queue litequeue`. Each figure is
the median of interleaved rounds in items per second; ratios hold between machines, figures do not.

ROUNDS=5 BENCH_DIR=/somewhere ONLY=FileQueue,litequeue python benchmarks/queues.py rates depth memory
"""

import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
from typing import Any

import queue_peers as peers
from measure import at_least, available, columns, judge
from queue_clients import FULL, ROUNDS, Open, four_and_four, one_and_one
from queue_peers import Fray, Peer
from queue_servers import clients, memory, refused

from fray_queue import FileQueue, HttpQueue, MemoryQueue, SqliteQueue

ONLY = tuple(os.environ.get("ONLY", "").split(","))  # beginnings of the rows to measure; all of them
BASE = "bare aiohttp, http.client"
SAME = "bare aiohttp, HttpQueue"
ACK = "persist-queue ack"
FSYNC = "FileQueue, fsync"
SQLITE = "SqliteQueue"
SYNCED = "a durable answer waits for the disk of this machine"


def shared(peer: Peer) -> Open:
    return lambda: peer


def subjects(stack: Any) -> dict[str, tuple[Open, int, Any]]:
    """Return each queue's opener, how many items a round has, and what its clients run in."""
    process: Any = multiprocessing.get_context("fork").Process
    bare = stack.enter_context(
        peers.server(lambda port: [sys.executable, "-c", peers.BARE_SERVER, str(port)])
    )
    same = stack.enter_context(peers.server(lambda port: [sys.executable, "-c", peers.BARE_QUEUE, str(port)]))
    ours = stack.enter_context(peers.server(lambda port: peers.fray_server(port)))
    store = stack.enter_context(peers.folder())
    stored = stack.enter_context(peers.server(lambda port: peers.fray_server(port, "--store", f"{store}/s")))
    disk = stack.enter_context(peers.folder())

    def http(port: int, batch: int = 1) -> Open:
        return lambda: Fray(HttpQueue(f"http://127.0.0.1:{port}", "q"), batch)

    found: dict[str, tuple[Open, int, Any]] = {
        BASE: (lambda: peers.Bare(bare), 1000, process),
        SAME: (http(same), 1000, process),
        "SimpleQueue (threads, no lease)": (shared(peers.Simple()), 50_000, threading.Thread),
        "MemoryQueue": (shared(Fray(MemoryQueue())), 50_000, threading.Thread),
        SQLITE: (lambda: Fray(SqliteQueue(f"{disk}/q.db")), 600, process),
        "SqliteQueue, batches of 100": (lambda: Fray(SqliteQueue(f"{disk}/q2.db"), 100), 20_000, process),
        FSYNC: (lambda: Fray(FileQueue(f"{disk}/a")), 600, process),
        "FileQueue, fsync=False": (lambda: Fray(FileQueue(f"{disk}/b", fsync=False)), 3000, process),
        "HttpQueue": (http(ours), 1000, process),
        "HttpQueue, batches of 100": (http(ours, 100), 20_000, process),
        "HttpQueue with a store": (http(stored), 600, process),
        "HttpQueue with a store, batches of 100": (http(stored, 100), 10_000, process),
    }
    if available("persist-queue", module="persistqueue"):
        found[ACK] = (lambda: peers.PersistAck(f"{disk}/c"), 300, threading.Thread)
    if available("litequeue", module="litequeue"):
        found["litequeue"] = (lambda: peers.Lite(f"{disk}/d.db"), 600, process)
    if available("beanstalkd", module="greenstalk", program="beanstalkd"):
        beans = stack.enter_context(peers.server(peers.beanstalkd))
        found["beanstalkd, memory"] = (lambda: peers.Beanstalk(beans), 3000, process)
    if available("redis", module="redis", program="redis-server"):
        redis = stack.enter_context(peers.server(peers.redis_server))
        found["redis, Lua lease, memory"] = (lambda: peers.Redis(redis), 1500, process)
    return found


def rates() -> None:
    """Print the table of all queues."""
    with contextlib.ExitStack() as stack:
        table = {name: subject for name, subject in subjects(stack).items() if name.startswith((BASE, *ONLY))}
        figures: dict[tuple[str, str], list[float]] = {}
        for _ in range(ROUNDS):
            for name, (opened, count, parallel) in table.items():
                for size in (100, 10_000):
                    scaled = count if size == 100 else count // 4
                    if not (name == ACK and size > 100):
                        figures.setdefault((name, f"1+1 {size}"), []).append(
                            one_and_one(opened, scaled, size)
                        )
                if name != ACK:  # its 4+4 takes minutes
                    figures.setdefault((name, "4+4 100"), []).append(
                        four_and_four(opened, count, 100, parallel)
                    )
        _print(table, figures)


def _print(table: dict[str, Any], figures: dict[tuple[str, str], list[float]]) -> None:
    shapes = ("1+1 100", "1+1 10000", "4+4 100")
    medians = {key: statistics.median(values) for key, values in figures.items()}
    rows = []
    for name in table:
        values = [(medians.get((name, shape)), medians[BASE, shape]) for shape in shapes]
        rows.append(
            [name, *(f"{value:,.0f} ({value / base:.2f})" if value else "-" for value, base in values)]
        )
    title = f"push + pop + done (ratio to bare aiohttp); median of {ROUNDS} interleaved rounds"
    columns(title, ["items/s, 1+1 of 100 B", "1+1 of 10 kB", "4+4 of 100 B"], rows)
    _judge(medians)


def _judge(medians: dict[tuple[str, str], float]) -> None:
    """Compare the rates with the goals."""

    def ratio(what: str, name: str, peer: str, shape: str, bound: float, limit: str = "") -> None:
        if (name, shape) in medians and (peer, shape) in medians:
            judge(what, medians[name, shape] / medians[peer, shape], at_least(bound, limit))

    ratio("SqliteQueue one by one, ratio to persist-queue's ack", SQLITE, ACK, "1+1 100", 1.0, SYNCED)
    ratio("SqliteQueue one by one, ratio to FileQueue with fsync", SQLITE, FSYNC, "1+1 100", 1.0, SYNCED)
    ratio("SqliteQueue 4+4, ratio to FileQueue with fsync", SQLITE, FSYNC, "4+4 100", 1.0, SYNCED)
    batches = f"{SQLITE}, batches of 100"
    ratio("SqliteQueue in batches of 100, ratio to one by one", batches, SQLITE, "1+1 100", 20, SYNCED)
    ratio("Server, ratio to bare aiohttp behind the same client", "HttpQueue", SAME, "1+1 100", 0.8)


def depth() -> None:
    """Print the rate of pop and done at several depths."""
    rows = []
    with peers.folder() as disk, peers.server(lambda port: peers.fray_server(port)) as port:
        http: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "q")
        depths = {
            "MemoryQueue": (MemoryQueue[bytes](), 20_000, (1_000, FULL // 10, FULL)),
            "HttpQueue": (http, 600, (1_000, FULL // 10, FULL)),
            "SqliteQueue": (SqliteQueue[bytes](f"{disk}/q.db"), 600, (1_000, FULL // 10, FULL)),
            "FileQueue, fsync=False": (FileQueue[bytes](f"{disk}/q", fsync=False), 2000, (1_000, FULL // 10)),
        }
        for name, (queue, count, sizes) in depths.items():
            if not name.startswith(ONLY):
                continue
            held, row = 0, [name]
            for size in sizes:
                for _ in range((size - held) // 1000):
                    queue.push_many([b"x" * 100] * 1000)
                held = size
                count = min(count, size)
                start = time.perf_counter()
                for _ in range(count):
                    queue.done(queue.pop())  # type: ignore[arg-type]
                row.append(f"{count / (time.perf_counter() - start):,.0f}")
                queue.push_many([b"x" * 100] * count)
            rows.append([*row, *["-"] * (4 - len(row))])
    columns("pop + done, at a depth", [f"items/s at {size:,}" for size in (1_000, FULL // 10, FULL)], rows)


def latency() -> None:
    """Print how long after a push a waiting pop returns."""
    rows = []
    with peers.folder() as disk, peers.server(lambda port: peers.fray_server(port)) as port:
        http: HttpQueue[float] = HttpQueue(f"http://127.0.0.1:{port}", "q")
        for name, queue in {
            "MemoryQueue": MemoryQueue[float](),
            "HttpQueue": http,
            "SqliteQueue": SqliteQueue[float](f"{disk}/q.db"),
            "FileQueue, fsync=False": FileQueue[float](f"{disk}/q", fsync=False),
        }.items():
            took = sorted(_latencies(queue, 200))
            rows.append((name, f"{took[100] * 1e3:.2f}", f"{took[197] * 1e3:.2f}"))
    columns("pop(wait) returns after a push", ["p50, ms", "p99, ms"], rows)


def _latencies(queue: Any, count: int) -> list[float]:
    took: list[float] = []

    def wait() -> None:
        for _ in range(count):
            lease = queue.pop(wait=30)
            took.append(time.perf_counter() - lease.item)
            queue.done(lease)

    waiter = threading.Thread(target=wait)
    waiter.start()
    for number in range(count):
        while len(took) < number:
            time.sleep(0.001)
        time.sleep(0.01)
        queue.push(time.perf_counter())
    waiter.join()
    return took


def sqlite() -> None:
    """Print the rate of a `sqlite:` queue with 1,000 and with 1,000,000 items in it, in turn."""
    figures: dict[int, list[float]] = {1_000: [], FULL: []}
    with peers.folder() as disk:
        queues = {size: SqliteQueue[bytes](f"{disk}/{size}.db") for size in figures}
        for size, queue in queues.items():
            for _ in range(size // 1000):
                queue.push_many([b"x" * 100] * 1000)
        for _ in range(3 * ROUNDS):
            for size, queue in queues.items():
                start = time.perf_counter()
                for _ in range(200):
                    queue.push(b"x" * 100)
                    queue.done(queue.pop())  # type: ignore[arg-type]
                figures[size].append(200 / (time.perf_counter() - start))
    small, large = (statistics.median(each) for each in figures.values())
    rows = [("1,000 items", f"{small:,.0f}"), (f"{FULL:,} items", f"{large:,.0f}")]
    columns("SqliteQueue, push + pop + done, by what is in it", ["items/s"], rows)
    judge(f"SqliteQueue: {FULL:,} items, ratio to 1,000", large / small, at_least(0.9))


PARTS = {
    "rates": rates,
    "depth": depth,
    "sqlite": sqlite,
    "latency": latency,
    "clients": clients,
    "refused": refused,
    "memory": memory,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
