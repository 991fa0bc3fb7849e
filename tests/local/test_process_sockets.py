"""Sockets between processes of Fray, whatever the program does with those of its own."""

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fray import ActorDiedError, JobContext, create_context
from fray.testing import tasks


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_STATE_DIR", os.fspath(tmp_path))


class Hasty:
    """An actor of a program that lets no socket wait for long."""

    def __init__(self) -> None:
        socket.setdefaulttimeout(0.05)

    def rest(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


class TestDefaultTimeouts:
    """What a program says by `socket.setdefaulttimeout` is about its own sockets."""

    @pytest.fixture
    def _in_a_hurry(self) -> Iterator[None]:
        socket.setdefaulttimeout(0.05)
        yield
        socket.setdefaulttimeout(None)

    @pytest.mark.usefixtures("_in_a_hurry")
    def test_workers_wait_for_their_owner(self) -> None:
        with create_context("process", max_workers=1) as context:
            assert context.get(context.run(tasks.add, 1), timeout=60) == 2
            assert context.get(context.run(Hasty().rest, 0.3), timeout=60) == 0.3
            assert context.get(context.run(tasks.add, 2), timeout=60) == 3

    @pytest.mark.usefixtures("_in_a_hurry")
    @pytest.mark.parametrize("lifetime", ["job", "detached"])
    def test_actors_wait_for_those_who_found_them(self, lifetime: str) -> None:
        with (
            create_context("process", max_workers=1, namespace="hasty") as maker,
            create_context("process", max_workers=1, namespace="hasty") as finder,
        ):
            made = maker.create_actor(Hasty, name="hasty", lifetime=lifetime)
            try:
                assert maker.get(made.rest(0), timeout=60) == 0
                found = finder.get_actor("hasty")
                assert finder.get(found.rest(0.3), timeout=60) == 0.3
            finally:
                maker.kill(made)


def programs(ends: ExitStack, namespace: str) -> list[JobContext]:
    """Return three contexts that find each other's actors, until `ends` is closed."""
    return [
        ends.enter_context(create_context("process", max_workers=1, namespace=namespace)) for _ in range(3)
    ]


class Greedy:
    """An actor that uses up all file descriptors of its process for a while."""

    def __init__(self) -> None:
        self._taken: list[int] = []

    def take_all(self) -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        while True:
            try:
                self._taken.append(os.dup(2))
            except OSError:
                return len(self._taken)

    def give_back(self) -> None:
        while self._taken:
            os.close(self._taken.pop())

    def answer(self) -> int:
        return 42


def test_an_actor_that_was_out_of_descriptors_can_be_called_again() -> None:
    with ExitStack() as ends:
        maker, first, second = programs(ends, "greedy")
        made = maker.create_actor(Greedy, name="greedy")
        assert maker.get(made.take_all(), timeout=60) > 0
        # A thread that waited for a connection already has the descriptor of the first one.
        calls = [finder.get_actor("greedy").answer() for finder in (first, second)]
        second.wait(calls[1:], timeout=0.2)
        maker.get(made.give_back(), timeout=60)
        assert [first.get(calls[0], timeout=60), second.get(calls[1], timeout=60)] == [42, 42]


class Threadless:
    """An actor that can start no thread for a while."""

    def limit(self, most: int) -> int:
        return threading.stack_size(most)  # of each thread to come

    def answer(self) -> int:
        return 42


def test_an_actor_that_could_start_no_thread_can_be_called_again() -> None:
    with ExitStack() as ends:
        maker, first, second = programs(ends, "few")
        made = maker.create_actor(Threadless, name="threadless")
        maker.get(made.limit(1 << 50), timeout=60)
        for _ in range(50):  # that it hangs up may be seen at any moment of a connection's life
            with pytest.raises(ActorDiedError):
                first.get(first.get_actor("threadless").answer(), timeout=20)
        maker.get(made.limit(0), timeout=60)
        assert second.get(second.get_actor("threadless").answer(), timeout=20) == 42
