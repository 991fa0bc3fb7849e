"""A real Iris, of one process: a controller and its workers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray.cluster import Cluster, create_cluster
from fray.testing.leaks import leaks_nothing, own_temporary_folder  # noqa: F401

PROGRAM = Path(__file__).parent.parent / "helpers" / "local_iris.py"


class LocalIris:
    """A running Iris."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)},
            )
        try:
            self.address = str(self._answer()["address"])
        except AssertionError:
            self.close()
            raise

    def ask(self, line: str) -> dict[str, object]:
        """Ask it to do something to itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Iris prints other things of its own
                found = json.loads(line)
                assert isinstance(found, dict)
                return found
        raise AssertionError(self.log.read_text()[-4000:])

    def close(self) -> None:
        """End it, with all that runs on it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def iris(own_temporary_folder: Path) -> Iterator[LocalIris]:  # noqa: F811
    """The Iris that all tests share."""
    started = LocalIris(own_temporary_folder / "iris")
    yield started
    started.close()


@pytest.fixture
def process_wide() -> tuple[str, ...]:
    """What is made once for a process: connections of Iris's HTTP client, and the threads of streams."""
    return (r"file \d+ -> socket:", r"file \d+ -> anon_inode:", r"thread fray-worker")


@pytest.fixture(scope="session")
def address(iris: LocalIris) -> str:
    """The address of its controller."""
    return iris.address


@pytest.fixture
def spec(address: str) -> str:
    return f"iris?controller={address}&shared_files=true"


@pytest.fixture
def cluster(spec: str) -> Cluster:
    return create_cluster(spec)
