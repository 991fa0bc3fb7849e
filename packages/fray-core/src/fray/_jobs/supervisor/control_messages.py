"""The lines that a supervisor is sent through its control pipe, as events of the supervision machine."""

from __future__ import annotations

from fray._jobs.rules.events import Noticed, RestartRequested, StopRequested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from fray._jobs.rules.events import Event


def requested(message: str, replicas: Container[int]) -> list[Event]:
    """Return what a line requests; nothing where it is malformed, or of a replica that is not among these."""
    word, *values = message.split() or [""]
    try:
        if word == "stop":
            return [StopRequested(_seconds(values[0]))]
        if word not in ("preempt", "restart"):
            return []
        event = Noticed if word == "preempt" else RestartRequested
        replica, attempt, seconds = int(values[0]), int(values[1]), _seconds(values[2])
    except (IndexError, ValueError):
        return []
    return [event(replica, attempt, seconds)] if replica in replicas else []


def _seconds(text: str) -> float:
    seconds = float(text)
    if seconds != seconds:  # a NaN, which is neither before nor after any time
        raise ValueError(text)
    return seconds
