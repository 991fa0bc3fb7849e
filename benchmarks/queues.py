"""What an item costs in each queue, push, pop and done together, against queues that people use.

Needs beanstalkd and redis-server, and `pip install greenstalk redis persist-queue litequeue`. Each figure is
the median of interleaved rounds in items per second; ratios hold between machines, figures do not.

ROUNDS=5 BENCH_DIR=/somewhere ONLY=FileQueue,litequeue python benchmarks/queues.py rates depth latency clients
"""

import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import queue_peers as peers
from queue_peers import Fray, Peer

from fray_queue import FileQueue, HttpQueue, MemoryQueue

ONLY = tuple(os.environ.get("ONLY", "").split(","))  # beginnings of the rows to measure; all of them
ROUNDS = int(os.environ.get("ROUNDS", "3"))
BASE = "bare aiohttp, http.client"
Open = Callable[[], Peer]


def one_and_one(opened: Open, count: int, size: int) -> float:
    """Push all, then take all, from one client."""
    peer, payload = opened(), b"x" * size
    start = time.perf_counter()
    for _ in range(count // peer.batch):
        peer.push(payload)
    for _ in range(count // peer.batch):
        peer.done(peer.take())
    return count / (time.perf_counter() - start)


def four_and_four(opened: Open, count: int, size: int, parallel: Any) -> float:
    """Push from four clients while four take; all in threads or processes of their own."""
    share = count // 4
    workers = [parallel(target=_produce, args=(opened, share, size)) for _ in range(4)]
    workers += [parallel(target=_consume, args=(opened, share)) for _ in range(4)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 4 * share / (time.perf_counter() - start)


def _produce(opened: Open, count: int, size: int) -> None:
    peer, payload = opened(), b"x" * size
    for _ in range(count // peer.batch):
        peer.push(payload)


def _consume(opened: Open, count: int) -> None:
    peer, taken = opened(), 0
    while taken < count:
        token = peer.take()
        if token is None:
            time.sleep(0.0005)
            continue
        peer.done(token)
        taken += len(token) if peer.batch > 1 else 1


def shared(peer: Peer) -> Open:
    return lambda: peer


def subjects(stack: Any) -> dict[str, tuple[Open, int, Any]]:
    """Return each queue's opener, how many items a round has, and what its clients run in."""
    process: Any = multiprocessing.get_context("fork").Process
    bare = stack.enter_context(
        peers.server(lambda port: [sys.executable, "-c", peers.BARE_SERVER, str(port)])
    )
    ours = stack.enter_context(peers.server(lambda port: peers.fray_server(port)))
    store = stack.enter_context(peers.folder())
    stored = stack.enter_context(peers.server(lambda port: peers.fray_server(port, "--store", f"{store}/s")))
    beans = stack.enter_context(peers.server(lambda port: ["beanstalkd", "-l", "127.0.0.1", "-p", str(port)]))
    redis = stack.enter_context(
        peers.server(lambda port: ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""])
    )
    disk = stack.enter_context(peers.folder())

    def http(port: int, batch: int = 1) -> Open:
        return lambda: Fray(HttpQueue(f"http://127.0.0.1:{port}", "q"), batch)

    return {
        BASE: (lambda: peers.Bare(bare), 1000, process),
        "bare aiohttp, HttpQueue's client": (lambda: peers.BareByOurs(bare), 1000, process),
        "SimpleQueue (threads, no lease)": (shared(peers.Simple()), 50_000, threading.Thread),
        "MemoryQueue": (shared(Fray(MemoryQueue())), 50_000, threading.Thread),
        "FileQueue, fsync": (lambda: Fray(FileQueue(f"{disk}/a")), 600, process),
        "FileQueue, fsync=False": (lambda: Fray(FileQueue(f"{disk}/b", fsync=False)), 3000, process),
        "persist-queue ack": (lambda: peers.PersistAck(f"{disk}/c"), 300, threading.Thread),
        "litequeue": (lambda: peers.Lite(f"{disk}/d.db"), 600, process),
        "HttpQueue": (http(ours), 1000, process),
        "HttpQueue, batches of 100": (http(ours, 100), 20_000, process),
        "HttpQueue with a store": (http(stored), 600, process),
        "HttpQueue with a store, batches of 100": (http(stored, 100), 10_000, process),
        "beanstalkd, memory": (lambda: peers.Beanstalk(beans), 3000, process),
        "redis, Lua lease, memory": (lambda: peers.Redis(redis), 1500, process),
    }


def rates() -> None:
    """Print the table of all queues."""
    import contextlib

    with contextlib.ExitStack() as stack:
        table = {name: subject for name, subject in subjects(stack).items() if name.startswith((BASE, *ONLY))}
        figures: dict[tuple[str, str], list[float]] = {}
        for _ in range(ROUNDS):
            for name, (opened, count, parallel) in table.items():
                for size in (100, 10_000):
                    scaled = count if size == 100 else count // 4
                    if not (name == "persist-queue ack" and size > 100):
                        figures.setdefault((name, f"1+1 {size}"), []).append(
                            one_and_one(opened, scaled, size)
                        )
                if name != "persist-queue ack":  # its 4+4 takes minutes
                    figures.setdefault((name, "4+4 100"), []).append(
                        four_and_four(opened, count, 100, parallel)
                    )
        _print(table, figures)


def _print(table: dict[str, Any], figures: dict[tuple[str, str], list[float]]) -> None:
    columns = ("1+1 100", "1+1 10000", "4+4 100")
    medians = {key: statistics.median(values) for key, values in figures.items()}
    print(f"\nitems/s, push + pop + done (ratio to bare aiohttp); median of {ROUNDS} interleaved rounds")
    print(f"{'':<40}" + "".join(f"{column:>22}" for column in columns))
    for name in table:
        row = f"{name:<40}"
        for column in columns:
            value = medians.get((name, column))
            ratio = value / medians[BASE, column] if value else 0
            row += f"{value:>13,.0f} ({ratio:>6.2f})" if value else f"{'-':>22}"
        print(row)


def depth() -> None:
    """Print the rate of pop and done at several depths."""
    print("\npop + done per second at a depth of")
    with peers.folder() as disk, peers.server(lambda port: peers.fray_server(port)) as port:
        http: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "q")
        depths = {
            "MemoryQueue": (MemoryQueue[bytes](), 20_000, (1_000, 100_000, 1_000_000)),
            "HttpQueue": (http, 600, (1_000, 100_000, 1_000_000)),
            "FileQueue, fsync=False": (FileQueue[bytes](f"{disk}/q", fsync=False), 2000, (1_000, 100_000)),
        }
        for name, (queue, count, sizes) in depths.items():
            held, row = 0, f"{name:<26}"
            for size in sizes:
                for _ in range((size - held) // 1000):
                    queue.push_many([b"x" * 100] * 1000)
                held = size
                count = min(count, size)
                start = time.perf_counter()
                for _ in range(count):
                    queue.done(queue.pop())  # type: ignore[arg-type]
                row += f"{size:>12,}: {count / (time.perf_counter() - start):>9,.0f}"
                queue.push_many([b"x" * 100] * count)
            print(row)


def latency() -> None:
    """Print how long after a push a waiting pop returns."""
    print("\npop(wait) returns after a push, ms: p50, p99")
    with peers.folder() as disk, peers.server(lambda port: peers.fray_server(port)) as port:
        http: HttpQueue[float] = HttpQueue(f"http://127.0.0.1:{port}", "q")
        for name, queue in {
            "MemoryQueue": MemoryQueue[float](),
            "HttpQueue": http,
            "FileQueue, fsync=False": FileQueue[float](f"{disk}/q", fsync=False),
        }.items():
            took = sorted(_latencies(queue, 200))
            print(f"{name:<26}{took[100] * 1e3:>10.2f}{took[197] * 1e3:>10.2f}")


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


def clients() -> None:
    """Print what 32 clients get from a server without and with a store."""
    print("\nHttpQueue, 32 client threads in 2 processes, items/s")
    process: Any = multiprocessing.get_context("fork").Process
    for name in ("memory", "store"):
        with peers.folder() as disk:
            arguments = ("--store", f"{disk}/s") if name == "store" else ()
            with peers.server(lambda port, more=arguments: peers.fray_server(port, *more)) as port:  # type: ignore[misc]
                start = time.perf_counter()
                workers = [process(target=_many, args=(port, 16, 60)) for _ in range(2)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                print(f"{name:<26}{2 * 16 * 60 / (time.perf_counter() - start):>10,.0f}")


def _many(port: int, threads: int, count: int) -> None:
    queue: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "q")

    def cycle() -> None:
        for _ in range(count):
            queue.push(b"x" * 100)
            lease = queue.pop(wait=5)
            if lease is not None:
                queue.done(lease)

    workers = [threading.Thread(target=cycle) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    for part in sys.argv[1:] or ["rates", "depth", "latency", "clients"]:
        {"rates": rates, "depth": depth, "latency": latency, "clients": clients}[part]()
