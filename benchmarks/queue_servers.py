"""What a queue server costs: many clients, a producer that is refused, a million items in memory."""

import contextlib
import multiprocessing
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import queue_peers as peers
from measure import at_least, at_most, columns, judge, lines, timed
from queue_clients import FULL, ROUNDS, one_and_one
from queue_peers import Fray

from fray_queue import HttpQueue, QueueFullError


def clients() -> None:
    """Print what 32 clients get from a server without and with a store."""
    rates: dict[str, float] = {}
    process: Any = multiprocessing.get_context("fork").Process
    for name in ("memory", "store"):
        with peers.folder() as disk:
            arguments = ("--store", f"{disk}/s") if name == "store" else ()
            with peers.server(lambda port, more=arguments: peers.fray_server(port, *more)) as port:
                start = time.perf_counter()
                workers = [process(target=_many, args=(port, 16, 60)) for _ in range(2)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                rates[name] = 2 * 16 * 60 / (time.perf_counter() - start)
    title = "HttpQueue, 32 client threads in 2 processes"
    columns(title, ["items/s"], [(name, f"{rate:,.0f}") for name, rate in rates.items()])
    judge(f"{title}: with a store, ratio to without", rates["store"] / rates["memory"], at_least(0.5))


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


def refused() -> None:
    """Print what a producer that is refused all the time costs workers on another queue of its server."""
    rows = []
    process = multiprocessing.get_context("fork").Process
    for name in ("memory", "store"):
        with (
            peers.folder() as disk,
            peers.server(
                lambda port, at=disk if name == "store" else "": peers.limited_server(port, 500, at)
            ) as port,
        ):
            full: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "full", create=True)
            other: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "other", create=True)
            full.push_many([b"x"] * 500)
            rates: dict[float | None, list[float]] = {None: [], 0.1: [], 0.0: []}
            for _ in range(3 * ROUNDS):
                for pause, measured in rates.items():
                    producer = process(target=_push_on, args=(port, pause))
                    producer.start()
                    time.sleep(0.2)
                    measured.append(one_and_one(lambda: Fray(other), 300, 100))  # noqa: B023 - called at once
                    producer.terminate()
                    producer.join()
        alone, polite, rude = (statistics.median(each) for each in rates.values())
        rows.append((name, f"{polite / alone:.2f}", f"{rude / alone:.2f}"))
        what = f"Workers beside a producer that is refused ten times a second, {name}, ratio to alone"
        judge(what, polite / alone, at_least(0.95))
    title = "Workers beside a producer that is refused: rate, ratio to that alone"
    columns(title, ["ten tries a second", "as many as it can"], rows)


def _push_on(port: int, pause: float | None) -> None:
    """Push to the queue that is full, and wait a little, or not; without a pause just be there."""
    queue: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "full", create=True)
    while True:
        if pause is None:
            time.sleep(60)
        with contextlib.suppress(QueueFullError):
            queue.push(b"x")
        time.sleep(pause or 0.0)


def memory() -> None:
    """Print what a server holds in memory, and how long it takes to start, with a million items of 1 kB."""
    with peers.folder() as disk:
        arguments = ("--store", f"{disk}/s")
        with peers.server(lambda port: peers.fray_server(port, *arguments)) as port:
            queue: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{port}", "q")
            pushed = timed(lambda: [queue.push_many([b"x" * 1000] * 1000) for _ in range(FULL // 1000)])
            filled = _resident(port)
        start = time.perf_counter()
        with peers.server(lambda port: peers.fray_server(port, *arguments)) as port:
            queue = HttpQueue(f"http://127.0.0.1:{port}", "q")
            size = queue.size()
            started = time.perf_counter() - start
            queue.done_many(queue.pop_many(1000))
            again = _resident(port)
    rows = [
        ("pushed", f"{pushed:.0f} s, {filled} MB resident at most"),
        ("started again, counted", f"{size:,} in {started:.2f} s, {again} MB resident at most"),
    ]
    lines(f"{FULL:,} items of 1 kB pending in a server with a store", rows)
    judge(f"{FULL:,} items of 1 kB pending, resident", max(filled, again), at_most(200), " MB")
    judge(
        f"restart with {FULL:,} items",
        started,
        at_most(1.0, "an interpreter with aiohttp starts first"),
        " s",
    )


def _resident(port: int) -> int:
    """Return what the server on a port held in memory at most, in MB."""
    lines = [line for pid in _servers(port) for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return max(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def _servers(port: int) -> list[str]:
    """Return the processes whose command line has the port."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"serve" in (words := command.read_bytes().split(b"\0")) and str(port).encode() in words:
                found.append(command.parent.name)
    return found
