"""For every test of every package."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_fray_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the developer's shell says of Fray, a test starts without it."""
    for name in [name for name in os.environ if name.startswith("FRAY_")]:
        monkeypatch.delenv(name)
