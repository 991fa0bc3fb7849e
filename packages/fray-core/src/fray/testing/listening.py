"""A listener that writes what it receives to a file, from any process, and what the tests read there."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fray._discovery.specs import Spec
from fray._telemetry import listeners as _listeners
from fray._values.events import Event, EventKind, Outcome


class FileListener:
    """Append each event to a file as a line of JSON; name it `fray.testing.listening:FileListener?path=…`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def on_event(self, event: Event, /) -> None:
        """Write the line, at once and whole, so that lines of several processes stay apart."""
        with self._path.open("a", buffering=1 << 16) as file:
            file.write(json.dumps(asdict(event)) + "\n")


class FailingListener:
    """Fails on everything."""

    def on_event(self, event: Event, /) -> None:
        """Fail."""
        raise RuntimeError("this listener always fails")


class Told:
    """The events that listeners in any process have written so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = str(Spec("fray.testing.listening:FileListener", {"path": str(path)}))

    def text(self) -> str:
        """Return all that was written."""
        return self.path.read_text() if self.path.exists() else ""

    def all(self) -> list[Event]:
        """Return every event, in the order of time."""
        events = [_event(json.loads(line)) for line in self.text().splitlines()]
        return sorted(events, key=lambda event: event.time)

    def of(self, subject: str, name: str | None = None) -> list[Event]:
        """Return the events of a kind of thing, and of one name."""
        events = [event for event in self.all() if event.kind.subject == subject]
        return [event for event in events if name in (None, event.name)]


def _event(data: dict[str, Any]) -> Event:
    data["kind"] = EventKind(data["kind"])
    data["outcome"] = data["outcome"] and Outcome(data["outcome"])
    return Event(**data)


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    """Drop every listener of this process, before and after a test of a module that imports this.

    The environment is read again at the next event.
    """
    _listeners.forget()
    yield
    _listeners.forget()


class ListeningFixtures:
    """What tests of events share."""

    @pytest.fixture
    def told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
        """What is received here and in every process that is started from here."""
        told = Told(tmp_path / "events.jsonl")
        monkeypatch.setenv(_listeners.VARIABLE, told.spec)
        _listeners.forget()
        _listeners.listening()
        yield told
        _listeners.forget()

    @pytest.fixture
    def failing_listener(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """A listener that fails on every event, here and in every process that is started from here."""
        monkeypatch.setenv(_listeners.VARIABLE, "fray.testing.listening:FailingListener")
        _listeners.forget()
        yield
        _listeners.forget()
