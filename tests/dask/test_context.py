"""The contract of a context, whole, on Dask; its workers are processes that the tests kill."""

import threading
import time
from collections.abc import Callable

import pytest
from fray_dask.connection import connect

from fray import create_context
from fray.testing.context import ContextContract


def _held() -> list[str]:
    from fray.backend import sessions

    return sessions()


class TestDaskContext(ContextContract):
    CHAIN = 100
    EXCEPTIONS_HOLD_REFERENCES = False  # the engine pickles them apart from what it counts
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

    def test_a_callback_that_blocks_in_dask_keeps_no_context_from_going_on(
        self, address: str, spec: str
    ) -> None:
        """Dask calls all callbacks of a process on one thread, and one of them may wait there for ever."""
        blocked, over = threading.Event(), threading.Event()

        def block(_: object) -> None:
            blocked.set()
            over.wait()

        try:
            with connect(address) as client, create_context(spec) as context:
                client.submit(time.time, pure=False).add_done_callback(block)
                assert blocked.wait(60)
                assert context.get(context.run(len, "abc"), timeout=60) == 3
        finally:
            over.set()
