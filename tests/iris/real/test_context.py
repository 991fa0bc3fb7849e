"""The parts of the contract of a context that are about actors, on a real Iris; and what is Iris's own."""

import pytest

from fray.testing.context import ActorCallContract, ActorContract


class TestIrisContext(ActorContract, ActorCallContract):
    @pytest.fixture
    def spec(self, address: str) -> str:
        return f"iris?controller={address}&shared_files=true&namespace=contract"
