"""What the tests of a context share: the context, and gates that hold a task until a test says so."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fray._context import JobContext
from fray._current import create_context
from fray.testing.promises import Promises

PATIENCE = 60.0
"""Seconds within which anything that should happen has happened."""


class ContextFixtures(Promises):
    """The fixtures of every area, and what a backend declares of itself."""

    INLINE = False
    """A task runs inside the call that submits it, so nothing is ever pending or concurrent."""
    SERIALIZES = True
    """Arguments and results are pickled on their way, so that what cannot be is refused."""
    INTERRUPTS = False
    """`cancel` stops a function that runs."""
    BOUNDED = True
    """`max_workers` says how many tasks run at the same time."""
    RUN_AHEAD = 64
    """Items that a generator task may be ahead of its consumer, at the most."""
    CHAIN = 10_000
    """Links of the long chain of dependent tasks."""
    DEPTH = 100
    """How deep tasks nest."""
    PROGRAMS = 50
    """Random programs to try."""

    @pytest.fixture
    def spec(self) -> str:
        """The spec that opens the context: the one fixture that every subclass gives."""
        raise NotImplementedError("a contract's subclass gives `spec`: fixture -> the spec of the context")

    @pytest.fixture
    def narrow_spec(self, spec: str) -> str:
        """The spec of a context that runs one task at a time, where it can."""
        return (
            spec if self.INLINE or not self.BOUNDED else f"{spec}{'&' if '?' in spec else '?'}max_workers=1"
        )

    @pytest.fixture
    def context(self, spec: str) -> Iterator[JobContext]:
        """The context, shut down after the test."""
        with create_context(spec) as context:
            yield context

    @pytest.fixture
    def narrow(self, narrow_spec: str) -> Iterator[JobContext]:
        """A context that runs one task at a time, where it can; shut down after the test."""
        with create_context(narrow_spec) as context:
            yield context

    @pytest.fixture
    def gate(self, tmp_path: Path) -> Iterator["Gate"]:
        """A closed gate, opened after the test, so that nothing waits for ever."""
        gate = Gate(tmp_path / "gate")
        yield gate
        gate.open()


class Gate:
    """A door that tasks wait at, in any process of this machine: a file that is there or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        """Let everybody through."""
        self.path.touch()

    def is_open(self) -> bool:
        """Return whether it was opened."""
        return self.path.exists()

    def wait(self) -> None:
        """Block until it is open."""
        until(self.is_open, f"{self.path.name} opens")


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that no event tells of, in another process."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE} s in vain until {what}")
        time.sleep(0.005)
