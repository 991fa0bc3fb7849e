"""The tests in this folder need no Iris; those in `real` do, and are not collected where there is none."""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from actor_servers import ActorServers, serving
from fake_controller import FakeController, Outage, modules

collect_ignore: list[str] = []
try:
    distribution("marin-iris")
except PackageNotFoundError:
    collect_ignore.append("real")


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> FakeController:
    """Return the controller that every address leads to."""
    made = FakeController()
    for name, module in modules(made).items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.fixture
def servers(controller: FakeController) -> Iterator[ActorServers]:
    """Serve the named actors whose jobs are launched, in this process."""
    with serving(controller) as made:
        yield made


@pytest.fixture
def outage(controller: FakeController, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    """Let the controller be away at times, by a clock that goes on when somebody sleeps."""
    made = Outage(controller)
    with monkeypatch.context() as patched:
        patched.setattr("time.monotonic", made.now)
        patched.setattr("time.sleep", made.sleep)
        yield made
