"""The contract of a context, whole, on Dask; its workers are processes that the tests kill."""

from collections.abc import Callable

import pytest
from fray_dask.connection import connect

from fray.testing.context import ContextContract


def _held() -> list[str]:
    from fray.backend import sessions

    return sessions()


class TestDaskContext(ContextContract):
    CHAIN = 100
    DEPTH = 20
    PROGRAMS = 4

    @pytest.fixture
    def spec(self, address: str) -> str:
        return f"dask?address={address}"

    @pytest.fixture
    def left_on_workers(self, address: str) -> Callable[[], set[str]]:
        """The sessions that workers hold."""

        def look() -> set[str]:
            with connect(address) as client:
                held = client.run(_held)
            return {f"{worker} {session}" for worker, found in held.items() for session in found}

        return look
