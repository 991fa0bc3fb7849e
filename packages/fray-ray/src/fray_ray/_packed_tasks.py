"""The replicas of a job as its entry in Ray's job table holds them: small, because a list reads every entry.

There is a column for each field, and all are compressed. An entry holds the state of each replica and the
latest of the earlier attempts; `_attempts_file` has the others. Long messages are cut: the job's log has the
whole of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from fray.cluster import ExitReason, JobStatus, TaskStatus
from fray_ray._entry_text import from_text, to_text
from fray_ray._reading import MOST_REPLICAS, check_values

EARLIER_IN_ENTRY = 64
"""How many earlier attempts, of all replicas together, an entry holds."""
_LONGEST = 64 * 1024  # characters of messages, of all replicas together
_SHORTEST = 400  # characters that each message may have however many there are
_KINDS = {
    "replica": int,
    "attempt": int,
    "exit_code": int,
    "started_at": float,
    "finished_at": float,
    "peak_memory": float,
    "cpu_time": float,
    "ports": dict,
}  # the others are texts
_COLUMNS = tuple(each.name for each in fields(TaskStatus) if each.name != "previous")


def pack(tasks: Sequence[TaskStatus]) -> str:
    """Return replicas as text for an entry."""
    data = {"tasks": _rows(tasks), "earlier": _rows(_latest_of_earlier(tasks))}
    return to_text(data)


def shortened(message: str | None, most: int = _LONGEST) -> str | None:
    """Return a message with its beginning and its end, and less between where it is longer than that."""
    if message is None or len(message) <= most:
        return message
    return f"{message[: most // 3]} … {message[-(most - most // 3) :]}"


class PackedTasks:
    """What `pack` gave; unpacked only when the replicas are used.

    Raises:
        ValueError: The text is damaged, or a later version's; or another of `UNREADABLE`.
    """

    def __init__(self, text: str) -> None:
        data = from_text(text)
        self._tasks, self._earlier = _Columns(data["tasks"]), _Columns(data["earlier"])

    def unpacked(self) -> tuple[TaskStatus, ...]:
        """Return the replicas."""
        earlier: dict[int, list[TaskStatus]] = {}
        for row in self._earlier.rows():
            earlier.setdefault(row["replica"], []).append(TaskStatus(**row))
        return tuple(
            TaskStatus(**row, previous=tuple(earlier.get(row["replica"], ()))) for row in self._tasks.rows()
        )


class _Columns:
    """The fields of replicas, checked so that `rows` gives some. Those of a later version are passed over."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._count = data["count"]
        if type(self._count) is not int or not 0 <= self._count <= MOST_REPLICAS:
            raise ValueError(f"{str(self._count)[:100]!r} is no number of packed replicas")
        self._columns = {name: data[name] for name in _COLUMNS if name in data}
        for name, column in self._columns.items():
            if not isinstance(column, dict) and len(column) != self._count:
                raise ValueError(f"{name} of the packed replicas has not {self._count} values")
            values = _values(column)
            check_values(name, values, _KINDS.get(name, str))
            if name == "ports":
                for ports in values:
                    check_values(name, ports.values(), int)
        for name in ("replica", "attempt"):
            if any(value is None or value < 0 for value in _values(self._columns[name])):
                raise ValueError(f"{name} of the packed replicas has a value that is not a replica's")
        _check_known("status", self._columns["status"], set(JobStatus))
        _check_known("reason", self._columns["reason"], {None, *ExitReason})

    def rows(self) -> Iterable[dict[str, Any]]:
        columns = [
            [column["all"]] * self._count if isinstance(column, dict) else column
            for column in self._columns.values()
        ]
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*columns, strict=True))


def _latest_of_earlier(tasks: Sequence[TaskStatus]) -> list[TaskStatus]:
    earlier = [attempt for task in tasks for attempt in task.previous]
    if len(earlier) > EARLIER_IN_ENTRY:
        earlier.sort(key=lambda attempt: attempt.finished_at or 0.0)
        earlier = earlier[-EARLIER_IN_ENTRY:]
    return sorted(earlier, key=lambda attempt: (attempt.replica, attempt.attempt))


def _rows(tasks: Sequence[TaskStatus]) -> dict[str, Any]:
    columns = {name: [getattr(task, name) for task in tasks] for name in _COLUMNS}
    columns["error_message"] = _shortened(columns["error_message"])
    columns["ports"] = list(map(dict, columns["ports"]))
    return {"count": len(tasks), **{name: _column(values) for name, values in columns.items()}}


def _shortened(messages: Sequence[str | None]) -> list[str | None]:
    count = sum(message is not None for message in messages)
    most = max(_SHORTEST, _LONGEST // max(1, count))
    return [shortened(message, most) for message in messages]


def _column(values: list[Any]) -> Any:
    """Return the values, or what all of them are."""
    same = bool(values) and all(value == values[0] for value in values)
    return {"all": values[0]} if same else values


def _values(column: Any) -> list[Any]:
    """Return the values of a column, each that is the same for all replicas once."""
    return [column["all"]] if isinstance(column, dict) else column


def _check_known(name: str, column: Any, known: set[Any]) -> None:
    unknown = set(_values(column)) - known
    if unknown:
        raise ValueError(f"{name} of the packed replicas has {sorted(map(str, unknown))[:10]}")
