"""How many items a pool handles: `work` and `awork` over HTTP, and beanstalkd with a hand-written loop.

Needs beanstalkd, and `pip install greenstalk`. Figures are medians of interleaved rounds; ratios hold between
machines, figures do not.

ROUNDS=3 python benchmarks/queue_pools.py throughput replies coroutines heartbeat
"""

import asyncio
import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import queue_peers as peers
from measure import at_least, at_most, available, columns, fewer, judge, lines

from fray.backend import Heartbeat
from fray_queue import HttpQueue, MemoryQueue, awork, work

ROUNDS = int(os.environ.get("ROUNDS", fewer(3, 1)))
ITEMS = int(os.environ.get("ITEMS", fewer(20_000, 2_000)))
WORKERS = 4
PAYLOAD = b"x" * 100
BEANS = f"beanstalkd, a loop, {WORKERS} processes"
PROCESS: Any = multiprocessing.get_context("fork").Process


def nothing(item: object) -> None:
    """Be the function of a pool whose own cost is measured."""


def _queue(port: int, name: str = "q") -> HttpQueue[Any]:
    return HttpQueue(f"http://127.0.0.1:{port}", name)


def _pool(port: int) -> None:
    work(_queue(port), nothing, stop_when_empty=True)


def _threads(port: int) -> None:
    work(_queue(port), nothing, concurrency=WORKERS, stop_when_empty=True)


def _loop(port: int) -> None:
    """Take and finish until nothing is left: what people write for beanstalkd."""
    peer = peers.Beanstalk(port)
    while (job := peer.take()) is not None:
        nothing(job.body)
        peer.done(job)


def _push_to_fray(port: int) -> None:
    queue = _queue(port)
    for _ in range(ITEMS // 100):
        queue.push_many([PAYLOAD] * 100)


def _push_to_beanstalkd(port: int) -> None:
    peers.Beanstalk(port).push_many(PAYLOAD, ITEMS // 100)


def throughput() -> None:
    """Print items/s of workers that do nothing: pushed in batches of 100, and then worked on."""
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(peers.server(lambda port: peers.fray_server(port)))
        subjects: dict[str, tuple[int, Callable[[int], None], Callable[[int], None], int]] = {
            f"work over HTTP, {WORKERS} processes": (ours, _push_to_fray, _pool, WORKERS),
            f"work over HTTP, {WORKERS} threads": (ours, _push_to_fray, _threads, 1),
        }
        if available("beanstalkd", module="greenstalk", program="beanstalkd"):
            beans = stack.enter_context(peers.server(peers.beanstalkd))
            subjects[BEANS] = (beans, _push_to_beanstalkd, _loop, WORKERS)
        figures: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS):
            for name, subject in subjects.items():
                figures.setdefault(name, []).append(_round(*subject))
    whole, rows = {}, []
    for name, rounds in figures.items():
        whole[name] = statistics.median(ITEMS / (pushed + worked) for pushed, worked in rounds)
        alone = statistics.median(ITEMS / worked for _, worked in rounds)
        rows.append((name, f"{whole[name]:,.0f}", f"{alone:,.0f}"))
    title = f"{ITEMS:,} items of 100 B, pushed and then worked on; median of {ROUNDS}"
    columns(title, ["items/s", "the workers alone, items/s"], rows)
    ours_whole = whole[f"work over HTTP, {WORKERS} processes"]
    judge("work over HTTP, 4 processes", ours_whole, at_least(10_000), " items/s")
    if BEANS in whole:
        judge("... ratio to beanstalkd with a loop", ours_whole / whole[BEANS], at_least(1 / 1.5))


def _round(
    port: int, push: Callable[[int], None], run: Callable[[int], None], processes: int
) -> tuple[float, float]:
    start = time.perf_counter()
    push(port)
    pushed = time.perf_counter()
    workers = [PROCESS(target=run, args=(port,)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return pushed - start, time.perf_counter() - pushed


def replies() -> None:
    """Print how long a push waits for its reply, at 100 requests a second."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(peers.server(lambda port: peers.fray_server(port)))
        worker = PROCESS(target=_answer, args=(port,))
        worker.start()
        try:
            queue = _queue(port)
            queue.push(0, reply=True).result(timeout=30)
            seconds = sorted(_ask(queue, fewer(1000, 200), 100.0))
        finally:
            worker.terminate()
            worker.join()
    half, most = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)]
    lines(
        "Push to reply over HTTP, 100 a second",
        [("p50", f"{half * 1e3:.1f} ms"), ("p99", f"{most * 1e3:.1f} ms")],
    )
    judge("Push to reply at 100 a second, p99", most * 1e3, at_most(20), " ms")


def _answer(port: int) -> None:
    work(_queue(port), abs, concurrency=4)


def _ask(queue: Any, count: int, rate: float) -> list[float]:
    """Ask at a steady rate, from threads that wait for their replies."""
    seconds: list[float] = []

    def one(number: int) -> None:
        start = time.perf_counter()
        queue.push(number, reply=True).result(timeout=30)
        seconds.append(time.perf_counter() - start)

    threads = []
    begin = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        threads.append(threading.Thread(target=one, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return seconds


async def _wait(_: object) -> None:
    await asyncio.sleep(0.01)


def coroutines() -> None:
    """Print items/s of 1,000 coroutines on one thread that wait 10 ms for each item."""

    with contextlib.ExitStack() as stack:
        port = stack.enter_context(peers.server(lambda port: peers.fray_server(port)))
        memory: MemoryQueue[bytes] = MemoryQueue()
        memory.push_many([PAYLOAD] * ITEMS)
        _push_to_fray(port)
        rows = []
        for name, queue in (("memory", memory), ("HTTP", _queue(port))):
            start = time.perf_counter()
            summary = asyncio.run(awork(queue, _wait, concurrency=1000, stop_when_empty=True))
            rate = summary.done / (time.perf_counter() - start)
            rows.append((name, f"{rate:,.0f} items/s"))
    lines("awork, 1,000 coroutines on one thread, 10 ms each", rows)


def heartbeat() -> None:
    """Print what it costs to keep 10,000 leases of a server alive: one thread, one request for 1,000."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(peers.server(lambda port: peers.fray_server(port)))
        queue = _queue(port)
        for _ in range(10):
            queue.push_many([PAYLOAD] * 1000)
        leases = queue.pop_many(10_000, 6.0)
        lost: list[str] = []
        beat = Heartbeat(queue, 6.0, lost=lost.append)
        beat.keep(leases)
        spent = time.process_time()
        time.sleep(18.0)  # three times as long as a lease
        spent = time.process_time() - spent
        beat.stop()
        held, lost_now = len(leases) - queue.pending(), len(lost)
        share = f"{spent / 18:.1%} of a core"
    lines("One heartbeat, leases of 6 s, held for 18 s", [(f"{held:,} leases, {lost_now} lost", share)])
    judge("Leases that a heartbeat for 10,000 lost", lost_now, at_most(0))


PARTS = {"throughput": throughput, "replies": replies, "coroutines": coroutines, "heartbeat": heartbeat}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
