"""What happens to jobs, tasks, actors and leases, told to listeners."""

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
