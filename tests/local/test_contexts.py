"""The contract on the contexts of this process."""

import pytest

from fray.testing.context import ContextContract


class TestSync(ContextContract):
    @pytest.fixture
    def spec(self) -> str:
        return "sync"


class TestSyncChecked(ContextContract):
    @pytest.fixture
    def spec(self) -> str:
        return "sync?check_serialization=true"


class TestThreads(ContextContract):
    PROGRAMS = 300

    @pytest.fixture
    def spec(self) -> str:
        return "threadpool"


class TestOneThread(ContextContract):
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
