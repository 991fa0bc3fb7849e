"""What the tests of a context share: the context, and notes to meet its tasks at."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import create_context
from fray._values.capabilities import ContextCapabilities
from fray.testing.notes import Note, NoteServer, notes_kept
from fray.testing.promises import Promises

_declared: dict[str, ContextCapabilities] = {}

T = TypeVar("T", bound=Callable[..., None] | type)


def needs(*capabilities: str) -> Callable[[T], T]:
    """Mark a test, or all of an area, that requests what a context need not have: it is moot without.

    Args:
        capabilities: Fields of `ContextCapabilities` that the context has to declare.
    """

    def mark(target: T) -> T:
        if isinstance(target, type):
            for name, promise in list(vars(target).items()):
                if name.startswith("test_"):
                    setattr(target, name, mark(promise))
            return target

        @wraps(target)
        def test(self: ContextFixtures, *args: Any, **kwargs: Any) -> None:
            for name in capabilities:
                if not getattr(self.can, name):
                    self.moot(name)
                    return
            target(self, *args, **kwargs)

        return cast("T", test)

    return mark


class ContextFixtures(Promises):
    """The fixtures of every area. What a backend can do is read from its context's `capabilities`.

    Attributes:
        CHAIN: Links of the long chain of dependent tasks.
        DEPTH: How deep tasks nest.
        PROGRAMS: Random programs to try.
        EXCEPTIONS_HOLD_REFERENCES: Whether an exception that holds references arrives as itself; else it
            arrives as a `TaskError`.
        HOST: This machine, as the workers reach it: tests and tasks meet at a port of it, and share
            no files.
    """

    can: ContextCapabilities

    CHAIN = 10_000
    DEPTH = 100
    PROGRAMS = 50
    EXCEPTIONS_HOLD_REFERENCES = True
    HOST = "127.0.0.1"

    @pytest.fixture
    def spec(self) -> str:
        """The spec that opens the context: the one fixture that every subclass gives."""
        raise NotImplementedError("a contract's subclass gives `spec`: fixture -> the spec of the context")

    @pytest.fixture(autouse=True)
    def _capable(self, spec: str) -> None:
        """Read what the backend declares: contexts start nothing when they are made."""
        if spec not in _declared:
            context = create_context(spec)
            _declared[spec] = declared = context.capabilities
            context.shutdown()
            assert isinstance(declared, ContextCapabilities), f"{spec}: capabilities are {declared!r}"
        self.can = _declared[spec]

    @pytest.fixture
    def narrow_spec(self, spec: str) -> str:
        """The spec of a context that runs one task at a time, where it can."""
        if not self.can.max_workers:
            return spec
        return f"{spec}{'&' if '?' in spec else '?'}max_workers=1"

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
    def left_on_workers(self) -> Callable[[], set[str]]:
        """What the workers hold of Fray, a line each; a backend with workers elsewhere says how to look."""
        return set

    @pytest.fixture
    def kept_by_library(self) -> Callable[[], set[str]]:
        """What the library below the context keeps for itself, as lines of `fray.testing.leaks.snapshot`.

        Connections to workers, say, which it makes when it first uses a worker; a backend on such a library
        says how to look.
        """
        return set

    @pytest.fixture
    def notes(self) -> Iterator[NoteServer]:
        """Makes notes by their names; after the test nothing waits for one any more."""
        with notes_kept(self.HOST) as server:
            yield server

    @pytest.fixture
    def gate(self, notes: NoteServer) -> Note:
        """A closed gate."""
        return notes.note("gate")
