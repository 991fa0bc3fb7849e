"""What others may have written into Ray's job table: it is read, or an error says that it cannot be."""

from collections.abc import Iterable
from typing import Any

from fray.cluster import JobInfo, TaskStatus

UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What reading raises where something else stands than was expected, or JSON is nested too deeply."""
MOST_REPLICAS = 100_000
"""Of one job; an entry that has more is none of ours, and its rows would fill the reader's memory."""
_DIGITS = 15  # of a number that is one of ours
_LARGEST = 1e15  # of any number that is: of seconds since the epoch, of bytes
_TEXTS = ("name", "error_message", "pending_reason", "command", "directory", "user", "commit")
_TIMES = ("submitted_at", "started_at", "finished_at")


def number_in(text: str, default: int) -> int:
    """Return the number that a text is; the default where it is none of ours."""
    return int(text) if len(text) <= _DIGITS and text.isdecimal() else default


def count_in(value: Any) -> int | None:
    """Return a value that is a number of ours; else None."""
    return value if type(value) is int and abs(value) < _LARGEST else None


def waiting_replicas(count: Any) -> tuple[TaskStatus, ...]:
    """Return so many replicas that have not begun.

    Raises:
        ValueError: It is no number of replicas.
    """
    if type(count) is not int or not 0 <= count <= MOST_REPLICAS:
        raise ValueError(f"{str(count)[:100]!r} is no number of replicas")
    return tuple(TaskStatus(replica=number) for number in range(count))


def checked(info: JobInfo) -> JobInfo:
    """Return a job whose fields have the types that its readers expect; its replicas are not looked at.

    Raises:
        ValueError: One has another.
    """
    for name in _TEXTS:
        check_values(name, [getattr(info, name)], str)
    for name in _TIMES:
        check_values(name, [getattr(info, name)], float)
    for name in ("logs", "warnings"):
        check_values(name, getattr(info, name), str)
    check_values("labels", info.labels.values(), str)
    check_values("progress", (info.progress or {}).values(), int)
    if info.last_seen is not None:
        check_values("host", [info.last_seen.host], str)
        check_values("time", [info.last_seen.time], float)
    return info


def check_values(name: str, values: Iterable[Any], kind: type) -> None:
    """Refuse values that are neither None nor of a type: `str`, `dict`, `int`, or `float` for any number.

    Raises:
        ValueError: There is one.
    """
    kinds, is_number = (int, float) if kind is float else (kind,), kind in (int, float)
    for value in values:
        if value is None:
            continue
        if type(value) not in kinds or (is_number and not -_LARGEST < value < _LARGEST):  # NaN is not between
            raise ValueError(f"{name} has a value that is no {kind.__name__} of ours: {str(value)[:100]!r}")
