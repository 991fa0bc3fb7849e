"""Rollouts for a policy that changes meanwhile: the newest first, and the stale expire.

A trainer balances a pole on a cart. For each version of its policy it pushes requests for rollouts, many
more than it needs, and learns from those that are answered first. What is left of a version is worth less
than any request of the next: the version is the priority. What nobody took within its `ttl` is worth nothing;
it expires, and who waited for it gets an error.

    python examples/rollouts.py                     # two workers
    python examples/rollouts.py --crash 0.02        # a rollout in fifty kills its worker

The policy is linear and learns by random search (Mania, Guy and Recht 2018).
"""

import argparse
import math
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from fray.cluster import JobRequest, ResourceConfig, current_cluster
from fray.queue import Queue, open_queue
from fray_queue import work

Weights = tuple[float, ...]

STEPS = 300  # of an episode that the pole survives
MASTERED = 0.95  # of them, on average
NEEDED = 12  # reports that make one update
PUSHED = 200  # requests for them: the workers are never idle, and one that is slow, or dies, delays nothing
TTL = 0.5  # seconds after which a request that nobody took is stale
LEASE = 2.0  # seconds until the requests of a worker that died go to another
STEP, RATE = 0.5, 0.4


class Request(NamedTuple):
    """What to try: the policy, and a direction to go from it, both ways."""

    version: int
    weights: Weights
    direction: Weights
    seed: int


class Report(NamedTuple):
    """How long the pole stood either way."""

    version: int
    direction: Weights
    ahead: int
    back: int


def episode(weights: Weights, seed: int) -> int:
    """Return how many steps the pole stood: the cart and pole of Barto, Sutton and Anderson (1983)."""
    rng = random.Random(seed)
    place, speed, angle, spin = 0.0, 0.0, rng.uniform(-0.2, 0.2), 0.0
    for step in range(STEPS):
        seen = (place, speed, angle, spin)
        push = 10.0 if sum(w * s for w, s in zip(weights, seen, strict=True)) > 0 else -10.0
        pull = (push + 0.05 * spin**2 * math.sin(angle)) / 1.1
        twist = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (
            0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
        )
        place, speed = place + 0.02 * speed, speed + 0.02 * (pull - 0.05 * twist * math.cos(angle) / 1.1)
        angle, spin = angle + 0.02 * spin, spin + 0.02 * twist
        if abs(place) > 2.4 or abs(angle) > math.radians(24):
            return step
    return STEPS


class Rollout:
    """Plays the episode of a request."""

    def __init__(self, crash: float) -> None:
        self._crash = crash

    def __call__(self, request: Request) -> Report:
        if random.random() < self._crash:
            os.kill(os.getpid(), signal.SIGKILL)
        ahead, back = (
            episode(moved(request.weights, request.direction, sign * STEP), request.seed) for sign in (1, -1)
        )
        return Report(request.version, request.direction, ahead, back)


def roll(url: str, crash: float) -> None:
    """Answer requests until stopped; each replica of the job runs this."""
    queue: Queue[Request] = open_queue(url)
    # Nothing is fetched ahead: what is in a worker's hands is not overtaken by what is newer.
    work(queue, Rollout(crash), lease_timeout=LEASE, prefetch=0)


def reports_of(queue: Queue[Request], version: int, weights: Weights, rng: random.Random) -> list[Report]:
    """Push requests for a version, and return the reports that come first."""
    reports: list[Report] = []
    under_way: set[str] = set()
    while len(reports) < NEEDED:
        if not under_way:  # at first, and when all of them expired because every worker was dead
            requests = [
                Request(version, weights, tuple(rng.gauss(0, 1) for _ in weights), rng.randrange(1 << 30))
                for _ in range(PUSHED)
            ]
            under_way.update(queue.push_many(requests, priority=version, ttl=TTL, reply=True))
        replies = queue.fetch_replies(list(under_way), wait=10.0)
        under_way.difference_update(replies)
        reports += [reply.get() for reply in replies.values() if reply.outcome == "value"]
    return reports


def train(queue: Queue[Request], updates: int = 300) -> int:
    """Learn until the policy is mastered; return after how many updates."""
    rng = random.Random(5)
    weights: Weights = (0.0, 0.0, 0.0, 0.0)
    for version in range(1, updates + 1):
        reports = reports_of(queue, version, weights, rng)
        assert all(report.version == version for report in reports)
        weights = improved(weights, reports)
        mean = sum(report.ahead + report.back for report in reports) / (2 * len(reports))
        if version % 10 == 1:
            print(f"update {version}: {mean:.0f} of {STEPS} steps", flush=True)
        if mean >= MASTERED * STEPS:
            print(f"mastered after {version} updates", flush=True)
            return version
    raise RuntimeError(f"the policy is not mastered after {updates} updates")


def moved(weights: Weights, direction: Weights, by: float) -> Weights:
    return tuple(w + by * d for w, d in zip(weights, direction, strict=True))


def improved(weights: Weights, reports: Sequence[Report]) -> Weights:
    """Take a step along the directions that were tried, each by how much better it was than its opposite."""
    values = [steps for report in reports for steps in (report.ahead, report.back)]
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) or 1.0
    for report in reports:
        weights = moved(
            weights, report.direction, RATE * (report.ahead - report.back) / (spread * len(reports))
        )
    return weights


def run(workers: int, crash: float) -> tuple[int, int]:
    """Start workers and learn; return the updates it took and the requests that were stale."""
    cluster = current_cluster()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/rollouts.db"
        queue: Queue[Request] = open_queue(url)
        job_id = cluster.launch(
            JobRequest(
                "rollouts",
                roll,
                (url, crash),
                resources=ResourceConfig(cpu=0.5, ram="256m", replicas=workers),
                max_retries_failure=10_000,
            )
        )
        try:
            # The first request waits until workers are there; a version's `ttl` is for those that run.
            queue.push(Request(0, (0.0,) * 4, (0.0,) * 4, 0), reply=True).result(timeout=120)
            updates = train(queue)
        finally:
            cluster.terminate(job_id)
        stale = [letter for letter in queue.dead_letters() if letter.reason == "expired"]
        left = queue.size()
    print(f"{len(stale)} stale requests expired, {left} were left", flush=True)
    return updates, len(stale)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="replicas of the job (default 2)")
    parser.add_argument(
        "--crash", type=float, default=0.0, metavar="P", help="probability that a rollout kills its worker"
    )
    args = parser.parse_args(argv)
    run(args.workers, args.crash)
    return 0


if __name__ == "__main__":
    sys.exit(main())
