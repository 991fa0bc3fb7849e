"""The parts of the contract of a context that are about actors, on a real Iris."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from fray import create_context
from fray.testing.context import ActorCallContract, ActorContract

numbers = count()


def naming_all(context: Any) -> Any:
    """Let a context give each actor a name, so that it is a job of Iris; its nameless ones are not."""
    start = context._start_actor

    def start_named(cls: Any, args: Any, kwargs: Any, options: Any) -> Any:
        return start(cls, args, kwargs, replace(options, name=options.name or f"actor-{next(numbers)}"))

    context._start_actor = start_named
    return context


class TestIrisContext(ActorContract):
    @pytest.fixture
    def spec(self, address: str) -> str:
        return f"iris?controller={address}&shared_files=true&namespace=contract"


class TestNamedActorsOnIris(ActorCallContract):
    @pytest.fixture
    def spec(self, address: str) -> str:
        return f"iris?controller={address}&shared_files=true&namespace=named"

    @pytest.fixture
    def context(self, spec: str) -> Iterator[Any]:
        with create_context(spec) as context:
            yield naming_all(context)

    @pytest.fixture
    def narrow(self, narrow_spec: str) -> Iterator[Any]:
        with create_context(narrow_spec) as context:
            yield naming_all(context)
