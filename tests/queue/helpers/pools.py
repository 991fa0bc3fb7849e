"""The contract of pools with the pools of fray_queue."""

from collections.abc import Callable
from typing import Any

import pytest

import fray_queue
from fray.testing.queue import PoolContract


class Pools(PoolContract):
    @pytest.fixture
    def work(self) -> Callable[..., Any]:
        return fray_queue.work

    @pytest.fixture
    def awork(self) -> Callable[..., Any]:
        return fray_queue.awork
