"""The parts of the contract of a context that are about actors, on a real Iris."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from fray import create_context
from fray.testing.context import ActorCallContract, ActorContract

numbers = count()


def naming_all(context: Any) -> Any:
    """Let a context give each actor a name, so that it is a job of Iris; its nameless ones are not."""
    create = context.create_actor

    def create_named(cls: Any, /, *args: Any, **given: Any) -> Any:
        if given.get("name") is None and getattr(given.get("options"), "name", None) is None:
            given["name"] = f"actor-{next(numbers)}"
        return create(cls, *args, **given)

    context.create_actor = create_named
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
