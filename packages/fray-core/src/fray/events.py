"""What happens to jobs, tasks, actors and leases, as listeners receive it."""

from typing import Any

from fray._telemetry.instrumentation import observed_replica
from fray._telemetry.listeners import add_listener, remove_listener, use_listener
from fray._telemetry.logging import LoggingListener
from fray._values.events import Event, EventKind, Listener, Outcome

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
        from fray._telemetry.otel import OpenTelemetryListener

        return OpenTelemetryListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
