"""What happens to jobs, tasks, actors and leases, told to listeners."""

from typing import Any

from fray import _plugins
from fray._events import Event, EventKind, Listener, Outcome, add_listener, remove_listener, use_listener
from fray._logging_listener import LoggingListener
from fray._observing import observed_replica

__all__ = [
    "Event",
    "EventKind",
    "Listener",
    "LoggingListener",
    "Outcome",
    "add_listener",
    "observed_replica",
    "remove_listener",
    "use_listener",
]


def __getattr__(name: str) -> Any:
    return _plugins.public_name("events", name)
