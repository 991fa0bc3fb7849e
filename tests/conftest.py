"""For every test of every package."""

import functools
import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, settings

# The suite draws the same examples at every run: a change is not blamed for a fault that was always
# there. `nox -s fuzz` and `-s torture` draw others each time.
# How long an example takes, or takes to be drawn, depends on the machine: neither makes a test fail.
_PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **_PATIENT)
settings.register_profile("torture", **_PATIENT)
settings.load_profile("torture" if "TORTURE" in os.environ else "repeatable")

# `nox -s fuzz` counts the examples: tests import `given` after this.
_examples: Counter[str] = Counter()
if "COUNT_EXAMPLES" in os.environ:
    _given: Any = hypothesis.given

    def counted(*strategies: Any, **named: Any) -> Any:
        """Be `given`, and count the calls of what it decorates."""

        def decorate(test: Any) -> Any:
            @functools.wraps(test)
            def call(*args: Any, **kwargs: Any) -> Any:
                _examples[f"{test.__module__}.{test.__qualname__}".replace(".<locals>", "")] += 1
                return test(*args, **kwargs)

            return _given(*strategies, **named)(call)

        return decorate

    hypothesis.given = counted


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many examples Hypothesis has tried, by property."""
    for name, number in sorted(_examples.items()):
        terminalreporter.write_line(f"{number:>9,} {name}")
    if _examples:
        terminalreporter.write_line(f"{_examples.total():>9,} examples in all")


# A shell without job control starts what it puts in the background with Ctrl-C ignored, and so would be
# all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_fray_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test without the `FRAY_*` variables of the developer's shell.

    But for the patience of the tests: nodes that a test adds have it from here.
    """
    for name in [name for name in os.environ if name.startswith("FRAY_") and name != "FRAY_TEST_PATIENCE"]:
        monkeypatch.delenv(name)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no garbage while a test has text read that is nested deeper than Python goes.

    Python 3.11 may begin a collection at the depth where it gives up. No finalizer can run there, and the
    test that runs is blamed for what an earlier one left.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()
