"""What clients of a queue do, one or eight at a time, and how often."""

import os
import time
from collections.abc import Callable
from typing import Any

from measure import fewer
from queue_peers import Peer

ROUNDS = int(os.environ.get("ROUNDS", fewer(3, 1)))
FULL = fewer(1_000_000, 20_000)  # items of a queue that is full
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
