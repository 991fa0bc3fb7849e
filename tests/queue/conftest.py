"""What the queue tests share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

from fray.testing.leaks import leaks_nothing, own_temporary_folder, process_wide  # noqa: F401

if TYPE_CHECKING:
    from engine_servers import PostgresServer, RedisServer

# libuv opens one pipe in a process, with the first loop, and keeps it: it is no test's.
uvloop.new_event_loop().close()
sys.path.insert(0, str(Path(__file__).parent / "helpers"))


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers write the tokens that they make there, and no test may find those of another program."""
    monkeypatch.setenv("FRAY_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    # Clients behind a proxy find no file; test_http_tokens.py is about servers that make a token.
    monkeypatch.setenv("FRAY_QUEUE_TOKEN", "of-the-tests")


@pytest.fixture
def torture() -> int:
    """How many times as long the torture tests run: the variable TORTURE, which `nox -s torture` sets."""
    return int(os.environ.get("TORTURE", "1"))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RedisServer]":
    """One Redis for all tests that do not harm it; each has a queue of its own name."""
    from engine_servers import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[PostgresServer]":
    """One PostgreSQL for all tests that do not harm it; each has a queue of its own name."""
    from engine_servers import PostgresServer

    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    with server:
        yield server
