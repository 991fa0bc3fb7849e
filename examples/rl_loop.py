"""Reinforcement learning with one train job and several rollout jobs that share named actors.

Balances a pole on a cart. The policy is linear and learns by random search: a rollout job takes the latest
weights, tries them a step in some random direction and a step in the opposite one, and reports which kept
the pole up longer; the train job moves the weights accordingly (Mania, Guy and Recht 2018, "Simple random
search provides a competitive approach to reinforcement learning"). A curriculum makes episodes longer and
starts them further from upright whenever the policy masters what it is given.

    python examples/rl_loop.py                          # jobs and actors are processes of this machine
    FRAY_CLUSTER_SPEC=ray python examples/rl_loop.py    # a Ray cluster

The train job makes three actors and launches the rollout jobs. They are its children: they find the actors by
name, and end when it ends.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fray import get_job_context
from fray.cluster import JobRequest, ResourceConfig, current_cluster

Weights = tuple[float, ...]


class Level(NamedTuple):
    """How hard an episode is."""

    steps: int
    tilt: float  # radians from upright, at most, at the start


LEVELS = (Level(50, 0.05), Level(100, 0.1), Level(200, 0.15), Level(400, 0.2))
STEP = 0.5  # how far a rollout goes from the weights
RATE = 0.3
PAIRS = 8  # reports that make one update
MASTERED = 0.95  # of an episode's steps, on average over the reports of an update


class Report(NamedTuple):
    """What a rollout found: the direction it tried, and how long the pole stood either way."""

    version: int
    direction: Weights
    ahead: int
    back: int


# --- the actors ---


class WeightStore:
    """The latest weights. One actor: the rollouts never see half an update."""

    def __init__(self, weights: Weights) -> None:
        self._version, self._weights = 0, weights

    def publish(self, weights: Weights) -> int:
        self._version, self._weights = self._version + 1, weights
        return self._version

    def latest(self) -> tuple[int, Weights]:
        return self._version, self._weights


class Curriculum:
    """What the rollouts are to practise."""

    def __init__(self) -> None:
        self._at = 0

    def level(self) -> Level | None:
        """Return the level to practise; None when all are mastered."""
        return LEVELS[self._at] if self._at < len(LEVELS) else None

    def grade(self, level: Level, mean_steps: float) -> Level | None:
        """Go on to the next level when this one is mastered; return the one to practise now."""
        if level == self.level() and mean_steps >= MASTERED * level.steps:
            self._at += 1
        return self.level()


class Reports:
    """What the rollouts have found and the trainer has not read; old ones make room for new ones."""

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def add(self, report: Report) -> None:
        self._reports = [*self._reports[-100:], report]

    def take(self, version: int) -> list[Report]:
        """Return the reports on a version of the weights once there are enough of them, else none."""
        fresh = [report for report in self._reports if report.version == version]
        if len(fresh) < PAIRS:
            return []
        self._reports = []
        return fresh


# --- the cart and its pole ---


@dataclass
class CartPole:
    """Barto, Sutton and Anderson's cart and pole (1983): 50 steps a second, a push of 10 N left or right."""

    x: float
    speed: float
    angle: float
    spin: float

    def step(self, right: bool) -> bool:
        """Push, and return whether the pole still stands on the track."""
        sine, cosine = math.sin(self.angle), math.cos(self.angle)
        pull = ((10.0 if right else -10.0) + 0.05 * self.spin**2 * sine) / 1.1
        twist = (9.8 * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        self.x += 0.02 * self.speed
        self.speed += 0.02 * (pull - 0.05 * twist * cosine / 1.1)
        self.angle += 0.02 * self.spin
        self.spin += 0.02 * twist
        return abs(self.x) < 2.4 and abs(self.angle) < math.radians(24)


def episode(weights: Weights, level: Level, rng: random.Random) -> int:
    """Return how many steps the pole stood."""
    cart = CartPole(0.0, 0.0, rng.uniform(-level.tilt, level.tilt), 0.0)
    for step in range(level.steps):
        seen = (cart.x, cart.speed, cart.angle, cart.spin)
        if not cart.step(right=sum(w * s for w, s in zip(weights, seen, strict=True)) > 0):
            return step
    return level.steps


# --- the jobs ---


def rollout() -> None:
    """Try the latest weights until the curriculum is mastered; each replica of the rollout job runs this."""
    context = get_job_context()
    store, curriculum, reports = (context.get_actor(name) for name in ("weights", "curriculum", "reports"))
    rng = random.Random()
    while level := context.get(curriculum.level()):
        version, weights = context.get(store.latest())
        direction = tuple(rng.gauss(0, 1) for _ in weights)
        start = rng.random()  # both ways begin alike, so that the difference is the direction's
        ahead, back = (
            episode(moved(weights, direction, sign * STEP), level, random.Random(start)) for sign in (1, -1)
        )
        context.get(reports.add(Report(version, direction, ahead, back)))


def train(rollouts: int) -> None:
    """Launch the rollouts and learn from them until every level is mastered."""
    context = get_job_context()
    weights: Weights = (0.0, 0.0, 0.0, 0.0)
    store = context.create_actor(WeightStore, weights, name="weights")
    curriculum = context.create_actor(Curriculum, name="curriculum")
    reports = context.create_actor(Reports, name="reports")
    cluster = current_cluster()
    request = JobRequest("rollout", rollout, resources=small(rollouts), max_retries_failure=100 * rollouts)
    job_id = cluster.launch(request)
    level: Level | None = LEVELS[0]
    version = updates = 0
    while level:
        found: list[Report] = context.get(reports.take(version))
        if not found:
            if cluster.poll(job_id).finished:
                raise RuntimeError(f"the rollouts ended early: {cluster.poll(job_id).error_message}")
            time.sleep(0.05)
            continue
        weights = improved(weights, found)
        updates += 1
        mean = sum(report.ahead + report.back for report in found) / (2 * len(found))
        print(f"update {updates}: {mean:.0f} of {level.steps} steps", flush=True)
        version = context.get(store.publish(weights))
        level = context.get(curriculum.grade(level, mean))
    cluster.wait(job_id, raise_on_failure=True)
    print(f"mastered {len(LEVELS)} levels with {updates} updates", flush=True)


def small(replicas: int = 1) -> ResourceConfig:
    return ResourceConfig(cpu=0.5, ram="256m", replicas=replicas)


def moved(weights: Weights, direction: Weights, by: float) -> Weights:
    return tuple(w + by * d for w, d in zip(weights, direction, strict=True))


def improved(weights: Weights, reports: Sequence[Report]) -> Weights:
    """Take a step along the directions that were tried, each by how much better it was than its opposite."""
    values = [steps for report in reports for steps in (report.ahead, report.back)]
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) or 1.0
    for report in reports:
        by = RATE * (report.ahead - report.back) / (spread * len(reports))
        weights = moved(weights, report.direction, by)
    return weights


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, launch the train job and follow its log."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=2, metavar="N", help="rollout replicas (default 2)")
    args = parser.parse_args(argv)
    cluster = current_cluster()
    request = JobRequest("train", train, (args.rollouts,), resources=small())
    job_id = cluster.launch(request)
    try:
        for line in cluster.monitor(job_id):
            print(line)
        cluster.wait(job_id, raise_on_failure=True)
    finally:
        cluster.terminate(job_id)  # also what it launched; one that has ended stays as it is
    return 0


if __name__ == "__main__":
    sys.exit(main())
