"""The promises that the contracts are made of, and what a run of one says about its backend.

A contract is a class of areas; an area is a class of tests, its docstring says what it is about; each
test is one promise, its docstring or its name says which. Run with `--junitxml`, the tests leave in the
report which promise each checked, on which backend, and what the backend declared or refused there.
`fray.testing.matrix` reads that.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from fray._values.capabilities import Capabilities
from fray._values.errors import UnsupportedError
from fray.testing.deadline import SECONDS, deadline


class Promises:
    """What every area of every contract has: a name for its backend, and a record of what was found out.

    Attributes:
        BACKEND: The backend's column in the matrix of capabilities; by default the name in its spec.
        DEADLINE: Seconds that a test may take; then it fails, with the stacks of all threads.
    """

    BACKEND = ""

    DEADLINE = SECONDS

    @pytest.fixture(autouse=True)
    def _recorded(self, request: pytest.FixtureRequest) -> Iterator[None]:
        self._notes: list[tuple[str, str]] = []
        backend = self.BACKEND
        if not backend and "spec" in request.fixturenames:
            backend = str(request.getfixturevalue("spec")).partition("?")[0]
        with deadline(self.DEADLINE):
            yield
        owner = owner_of(type(self), request.node.originalname)
        if owner is not None:
            named = f"{owner.__module__}.{owner.__qualname__}.{request.node.originalname}"
            found = [("promise", named), ("backend", backend or type(self).__name__)]
            declared = [("declared", f"{name}={value!r}") for name, value in declarations(self).items()]
            request.node.user_properties.extend([*found, *declared, *self._notes])

    def moot(self, declaration: str) -> None:
        """Note that the promise does not arise, because of what the backend declares."""
        self._notes.append(("moot", declaration))

    @contextmanager
    def refuses(self, match: str) -> "Iterator[pytest.ExceptionInfo[UnsupportedError]]":
        """Expect an UnsupportedError, and note it: the backend cannot do this, and says so."""
        with pytest.raises(UnsupportedError, match=match) as caught:
            yield caught
        self._notes.append(("refused", str(caught.value)))


@dataclass(frozen=True)
class Promise:
    """One promise of an area."""

    key: str  # module.Area.test_name
    sentence: str


@dataclass(frozen=True)
class Area:
    """The promises of one area of a contract."""

    title: str
    promises: tuple[Promise, ...]


def areas_of(contract: type) -> list[Area]:
    """List the areas of a contract with their promises, in the order in which they are written."""
    areas = []
    for area in contract.__mro__:
        tests = {name: test for name, test in vars(area).items() if name.startswith("test_")}
        if tests:
            prefix = f"{area.__module__}.{area.__qualname__}"
            promises = tuple(Promise(f"{prefix}.{name}", sentence(test)) for name, test in tests.items())
            areas.append(Area(inspect.getdoc(area) or area.__name__, promises))
    return areas


def sentence(test: object) -> str:
    """Describe what a test promises: its docstring's first line, or its name in words."""
    doc = inspect.getdoc(test)
    if doc:
        return doc.splitlines()[0].rstrip(".")
    words = str(getattr(test, "__name__", "")).removeprefix("test_").replace("_", " ")
    return words[:1].upper() + words[1:]


def owner_of(cls: type, test: str) -> type | None:
    """Return the area that a test comes from, also where a backend overrides it; None for one of its own."""
    owner = [base for base in cls.__mro__ if test in vars(base)][-1]
    return owner if owner.__module__.startswith("fray.testing.") else None


def declarations(test: Promises) -> dict[str, object]:
    """Return what a backend declares: its capabilities, or class attributes in capitals."""
    can = getattr(test, "can", None)
    if isinstance(can, Capabilities):
        return dict(can.to_dict())
    cls = type(test)
    names = sorted({name for base in cls.__mro__ for name in vars(base) if name.isupper()})
    return {name: value for name in names if isinstance(value := getattr(cls, name), bool)}
