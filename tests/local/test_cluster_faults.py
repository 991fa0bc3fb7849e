"""LocalCluster withstands what a cluster of directories has to: rules 9 to 11."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fray.testing.cluster import DirectoryContract


class TestLocalCluster(DirectoryContract):
    BACKEND = "local"

    @pytest.fixture
    def spec(self) -> str:
        return "local?cpus=4&memory=8g"

    @pytest.fixture
    def spec_on(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
        def on(folder: Path) -> str:
            monkeypatch.setenv("FRAY_STATE_DIR", str(folder / "state"))
            return "local?cpus=4&memory=8g"  # claims are on that disk too

        return on
