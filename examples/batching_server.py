"""A model behind a queue: clients push requests and wait for replies, workers answer them in batches.

The model is small and real: a network with one hidden layer that tells on which of three intertwined spirals
a point lies. It is trained on the spot, in about a second. One matrix product answers a batch in the time of
one request, so the workers let a batch fill for a few milliseconds.

    python examples/batching_server.py                             # 2,000 requests, two workers
    python examples/batching_server.py --workers 3 --crash 20      # a worker dies in its twentieth batch

A request whose worker dies goes to another one when its lease runs out; its client sees only that it takes
longer. What a request is wrong about fails that request alone, as the exception that the worker raised.
"""

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fray.cluster import JobRequest, ResourceConfig, current_cluster
from fray.queue import Queue, open_queue
from fray_queue import work

Array = NDArray[np.float64]
Point = tuple[float, float]

SPIRALS = 3
BATCH = 32
LINGER = 0.005  # seconds that a batch waits to be full
LEASE = 2.0  # seconds until the requests of a worker that died go to another


@dataclass(frozen=True)
class Prediction:
    spiral: int
    probability: float


# --- the model ---


def spirals(count: int, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """Return points near the spirals, and on which one each is."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, SPIRALS, count)
    along = rng.uniform(0.1, 1.0, count)
    angle = 4.0 * along + which * 2 * np.pi / SPIRALS + rng.normal(0, 0.1, count)
    points = np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1)
    return points, which


class Model:
    """A network with one hidden layer, trained by gradient descent with momentum."""

    def __init__(self, hidden: int = 48, steps: int = 1500) -> None:
        rng = np.random.default_rng(0)
        self._weights = [
            rng.normal(0, 2.0, (2, hidden)),
            rng.normal(0, 1.0, hidden),
            rng.normal(0, 0.1, (hidden, SPIRALS)),
            np.zeros(SPIRALS),
        ]
        speeds = [np.zeros_like(each) for each in self._weights]
        points, which = spirals(600, seed=1)
        wanted = np.eye(SPIRALS)[which]
        for _ in range(steps):
            for weight, speed, slope in zip(self._weights, speeds, self._slopes(points, wanted), strict=True):
                speed *= 0.9
                speed -= 0.3 * slope
                weight += speed

    def predict(self, points: Array) -> Array:
        """Return the probability of each spiral, for each point."""
        into, bias, out, base = self._weights
        scores = np.tanh(points @ into + bias) @ out + base
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(likely / likely.sum(axis=1, keepdims=True))

    def _slopes(self, points: Array, wanted: Array) -> list[Array]:
        into, bias, out, _ = self._weights
        inside = np.tanh(points @ into + bias)
        error = (self.predict(points) - wanted) / len(points)
        back = (error @ out.T) * (1 - inside**2)
        return [points.T @ back, back.sum(axis=0), inside.T @ error, error.sum(axis=0)]


# --- the workers ---


class Server:
    """Answers batches of points; each has its own outcome."""

    def __init__(self, crash: int) -> None:
        self._model, self._crash, self._batches = Model(), crash, 0

    def __call__(self, requests: list[Any]) -> list[Prediction | ValueError]:
        self._batches += 1
        if self._batches == self._crash:  # as a worker dies whose machine is taken away: without a word
            os.kill(os.getpid(), signal.SIGKILL)
        good = [request for request in requests if is_point(request)]
        answers = iter(self._model.predict(np.array(good).reshape(len(good), 2)))
        return [
            _prediction(next(answers)) if is_point(request) else ValueError(f"{request!r} is not a point")
            for request in requests
        ]


def is_point(request: Any) -> bool:
    if not isinstance(request, tuple) or len(request) != 2:
        return False
    return all(isinstance(number, (int, float)) and math.isfinite(number) for number in request)


def _prediction(probabilities: Array) -> Prediction:
    return Prediction(int(probabilities.argmax()), float(probabilities.max()))


def serve(url: str, crash: int) -> None:
    """Answer requests until stopped; each replica of the job runs this."""
    queue: Queue[Any] = open_queue(url)
    summary = work(queue, Server(crash), batch=BATCH, linger=LINGER, lease_timeout=LEASE)
    print(f"{summary.done} requests answered", flush=True)


# --- the client ---


def ask(queue: Queue[Any], points: Sequence[Point]) -> list[Prediction]:
    """Return the predictions in order; a few hundred requests are under way at a time."""
    return list(queue.map(points, in_flight=8 * BATCH, timeout=120.0))


def run(count: int, workers: int, crash: int) -> list[Prediction]:
    """Start workers, ask, report; return the predictions."""
    cluster = current_cluster()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/requests.db"
        queue: Queue[Any] = open_queue(url)
        job_id = cluster.launch(
            JobRequest(
                "batching-server",
                serve,
                (url, crash),
                resources=ResourceConfig(cpu=0.5, ram="256m", replicas=workers),
                max_retries_failure=10_000,  # a worker that died is started again
            )
        )
        try:
            points, which = spirals(count, seed=2)
            ask(queue, [(0.0, 0.0)])  # a worker has its model
            start = time.perf_counter()
            given = ask(queue, [(float(x), float(y)) for x, y in points])
            seconds = time.perf_counter() - start
            refused = queue.push("nonsense", reply=True)
            try:
                refused.result(timeout=60)
            except ValueError as error:
                print(f"a request that is wrong fails alone: {error}")
        finally:
            cluster.terminate(job_id)
    right = sum(answer.spiral == truth for answer, truth in zip(given, which, strict=True)) / len(given)
    died = sum(len(task.previous) for task in cluster.poll(job_id).tasks)
    print(f"{len(given):,} requests answered in order in {seconds:.1f} s, {right:.0%} of them right")
    print(f"{died} workers died")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000, metavar="N", help="how many (default 2000)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="replicas of the job (default 2)")
    parser.add_argument("--crash", type=int, default=0, metavar="N", help="each worker dies in its Nth batch")
    args = parser.parse_args(argv)
    run(args.requests, args.workers, args.crash)
    return 0


if __name__ == "__main__":
    sys.exit(main())
