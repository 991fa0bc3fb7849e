"""What happens to jobs, tasks, actors and leases, told to listeners."""

from typing import Any

from fray._events import Event, EventKind, Listener, Outcome
from fray._listeners import add_listener, remove_listener, use_listener
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
    if name == "OpenTelemetryListener":  # needs fray-core[otel], and says so
        from fray._otel import OpenTelemetryListener

        return OpenTelemetryListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
