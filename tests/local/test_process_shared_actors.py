"""Actors that several programs share: who may have a name, who is found by it, and how they end."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from descriptors import few_descriptors

from fray import ActorAlreadyExistsError, JobContext, create_context
from fray.testing.tasks import Counter


@pytest.fixture
def programs() -> Iterator[tuple[JobContext, JobContext]]:
    """Two contexts of one namespace, whose path is longer than a socket's may be."""
    with ExitStack() as ends:
        made = [create_context("process", max_workers=1, namespace="team" * 30) for _ in range(2)]
        first, second = map(ends.enter_context, made)
        yield first, second


class TestNames:
    def test_a_program_that_can_open_no_more_files_takes_no_name_of_a_living_actor(
        self, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, second = programs
        counter = first.create_actor(Counter, 5, name="tally")
        assert first.get(counter.value(), timeout=60) == 5
        assert second.get(second.run(abs, -1), timeout=60) == 1
        for spare in range(6):
            with few_descriptors(spare), pytest.raises((OSError, ActorAlreadyExistsError)):
                second.create_actor(Counter, name="tally")
        assert second.get(second.get_actor("tally").value(), timeout=60) == 5

    def test_an_actor_of_a_later_version_keeps_its_name(
        self, programs: tuple[JobContext, JobContext], state_dir: Path
    ) -> None:
        first, second = programs
        first.create_actor(Counter, 5, name="tally")
        [file] = (state_dir / "actors").glob("*/*.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"said_by_a_later_version": [1]}))
        with pytest.raises(ActorAlreadyExistsError):
            second.create_actor(Counter, name="tally")
        assert second.get(second.get_actor("tally").value(), timeout=60) == 5
