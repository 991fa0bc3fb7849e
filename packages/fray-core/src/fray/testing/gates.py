"""Gates that hold a task until a test says so. Nothing but the standard library: every worker loads this."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE = float(os.environ.get("FRAY_TEST_PATIENCE", "60"))
"""Seconds within which anything that should happen has happened; more of them where a backend is slow."""


class Gate:
    """A door that tasks wait at, in any process of this machine: a file that is there or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        """Open it for all."""
        self.path.touch()

    def is_open(self) -> bool:
        """Return whether it was opened."""
        return self.path.exists()

    def wait(self) -> None:
        """Block until it is open."""
        until(self.is_open, f"{self.path.name} opens")


def until(condition: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Wait for what no event reports, in another process: return the first true value of `condition`.

    It is checked less often the longer it takes: a check may take the CPU that the other process needs.
    """
    start = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - start
        if waited > patience:
            raise AssertionError(f"waited {patience:g} s in vain until {what}")
        time.sleep(min(0.1, max(0.005, waited / 20)))
    return value
