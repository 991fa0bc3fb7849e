"""The contract on the contexts of this process."""

import pytest

from fray.testing.context import ContextContract


class TestSync(ContextContract):
    INLINE = True
    SERIALIZES = False
    RUN_AHEAD = 1

    @pytest.fixture
    def spec(self) -> str:
        return "sync"


class TestSyncChecked(ContextContract):
    INLINE = True
    RUN_AHEAD = 1

    @pytest.fixture
    def spec(self) -> str:
        return "sync?check_serialization=true"


class TestThreads(ContextContract):
    SERIALIZES = False
    PROGRAMS = 300

    @pytest.fixture
    def spec(self) -> str:
        return "threadpool"


class TestOneThread(ContextContract):
    SERIALIZES = False

    @pytest.fixture
    def spec(self) -> str:
        return "threadpool?max_workers=1"

    @pytest.fixture
    def narrow_spec(self, spec: str) -> str:
        return spec


class TestThreadsChecked(ContextContract):
    @pytest.fixture
    def spec(self) -> str:
        return "threadpool?check_serialization=true"
