"""Events as lines of a log."""

import logging
import sys

from fray._values.events import Event, Outcome


class LoggingListener:
    """Write a line for each event: failures at level warning, all others at the given level.

    Lines go to the logger `fray.events`; in a process that has set up no logging, to stderr.

    Args:
        level: A name that `logging` knows, in any case.
    """

    def __init__(self, level: str = "info") -> None:
        known = logging.getLevelNamesMapping()
        if level.upper() not in known:
            raise ValueError(f"level must be one of {', '.join(map(str.lower, known))}, got {level!r}")
        self._level = known[level.upper()]
        self._logger = logging.getLogger("fray.events")

    def on_event(self, event: Event, /) -> None:
        """Write the line."""
        level = max(self._level, logging.WARNING) if event.outcome is Outcome.ERROR else self._level
        if self._logger.hasHandlers():
            self._logger.log(level, "%s", line_of(event))
        else:
            sys.stderr.write(f"{line_of(event)}\n")


def line_of(event: Event) -> str:
    """Return an event in one line: `task_ended add id=… outcome=ok seconds=0.002`."""
    facts = {
        "id": event.id,
        "parent": event.parent_id,
        **event.details,
        "outcome": event.outcome,
        "error": event.error,
        "seconds": None if event.seconds is None else f"{event.seconds:.6f}",
    }
    told = " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)
    return f"{event.kind} {event.name} {told}"
