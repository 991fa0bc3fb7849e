"""`ProcessContext` keeps every promise of a context."""

import pytest

from fray.testing.context import ContextContract


class TestProcessContext(ContextContract):
    """With as many workers as the machine has CPUs."""

    @pytest.fixture
    def spec(self) -> str:
        return "process"
