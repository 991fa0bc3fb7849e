"""The end of actors: killed in any phase, or with their context, and their names are free after it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray import ActorDiedError, ActorNotFoundError, ActorOptions, JobContext, create_context
from fray.testing.context import ContextFixtures  # noqa: F401 - it registers what pytest rewrites
from fray.testing.gates import Gate
from fray.testing.tasks import Counter, hold
from fray_ray.testing import LocalRayCluster

ROUNDS = 3


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


class Slow:
    """Its constructor waits for a gate."""

    def __init__(self, started: Gate, opened: Gate) -> None:
        started.open()
        opened.wait()

    def ready(self) -> bool:
        return True


def test_an_actor_that_is_being_made_can_be_killed(context: JobContext, tmp_path: Path) -> None:
    started, opened = Gate(tmp_path / "started"), Gate(tmp_path / "opened")
    slow = context.create_actor(Slow, started, opened, name="slow")
    call = slow.ready()
    started.wait()
    start = time.monotonic()
    context.kill(slow)
    assert time.monotonic() - start < 8.0
    with pytest.raises(ActorDiedError):
        context.get(call, timeout=60)
    assert context.get(context.create_actor(Counter, name="slow").increment(), timeout=200) == 1


def test_an_actor_that_waits_for_an_argument_can_be_killed(context: JobContext, tmp_path: Path) -> None:
    opened = Gate(tmp_path / "opened")
    waits = context.create_actor(Counter, context.run(hold, opened), name="waits")
    call = waits.increment()
    start = time.monotonic()
    context.kill(waits)
    assert time.monotonic() - start < 8.0
    with pytest.raises(ActorDiedError):
        context.get(call, timeout=60)
    opened.open()
    assert context.get(context.create_actor(Counter, name="waits").increment(), timeout=200) == 1


class Restarted:
    """It is made again when its process has ended, and is not ready then."""

    def __init__(self, made: Gate, again: Gate, opened: Gate) -> None:
        if made.is_open():
            again.open()
            opened.wait()
        made.open()

    def pid(self) -> int:
        return os.getpid()


def test_an_actor_that_is_being_made_again_can_be_killed(context: JobContext, tmp_path: Path) -> None:
    made, again, opened = (Gate(tmp_path / name) for name in ("made", "again", "opened"))
    options = ActorOptions(name="back", max_restarts=9)
    actor = context.create_actor(Restarted, made, again, opened, options=options)
    os.kill(context.get(actor.pid(), timeout=200), signal.SIGKILL)
    again.wait()
    start = time.monotonic()
    context.kill(actor)
    assert time.monotonic() - start < 8.0
    with pytest.raises(ActorDiedError):
        context.get(actor.pid(), timeout=60)
    assert context.get(context.create_actor(Counter, name="back").increment(), timeout=200) == 1


def test_the_name_of_a_killed_actor_is_free_at_once(context: JobContext) -> None:
    for _ in range(ROUNDS):
        counter = context.create_actor(Counter, name="again")
        context.kill(counter)  # it may be starting
        counter = context.create_actor(Counter, name="again")
        assert context.get(counter.increment(), timeout=200) == 1
        context.kill(counter)


def test_the_names_of_a_context_are_free_when_it_has_ended(ray_cluster: LocalRayCluster) -> None:
    names = ["first", "second", "third"]
    spec = f"ray?address={ray_cluster.address}&namespace=ends"
    with create_context(spec) as looks_on:
        for _ in range(ROUNDS):
            with create_context(spec) as context:
                actors = [context.create_actor(Counter, name=name) for name in names]
                assert context.get([actor.increment() for actor in actors], timeout=200) == [1, 1, 1]
            for name in names:
                with pytest.raises(ActorNotFoundError):
                    looks_on.get_actor(name)


def test_a_context_ends_when_the_head_has_freed_its_names(ray_cluster: LocalRayCluster) -> None:
    """Ray only sends that an actor is to end, and another program may ask for the name first."""
    from job_processes import gcs  # here: workers import this file, and no helpers

    head = gcs()
    goes_on = threading.Event()

    def go_on() -> None:
        goes_on.set()
        os.kill(head, signal.SIGCONT)

    with create_context(f"ray?address={ray_cluster.address}&namespace=ends") as context:
        counter = context.create_actor(Counter, name="slowly")
        assert context.get(counter.increment(), timeout=200) == 1
        later = threading.Timer(2.0, go_on)
        os.kill(head, signal.SIGSTOP)  # first: else a timer that is early leaves it stopped for ever
        later.start()
    assert goes_on.is_set()
    later.join()


def test_a_context_without_names_does_not_wait_for_the_head(ray_cluster: LocalRayCluster) -> None:
    from job_processes import gcs, paused

    context = create_context(f"ray?address={ray_cluster.address}")
    counter = context.create_actor(Counter)
    assert context.get(counter.increment(), timeout=200) == 1
    with paused(gcs()):
        start = time.monotonic()
        context.shutdown()
        assert time.monotonic() - start < 5.0
