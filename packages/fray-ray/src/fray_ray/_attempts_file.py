"""All earlier attempts of a run's replicas: a file beside the job's log, a line for each attempt.

There is one only where there are more than an entry of Ray's job table holds, so that the table stays small.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fray.cluster import TaskStatus
from fray_ray._packed_tasks import EARLIER_IN_ENTRY
from fray_ray._reading import UNREADABLE

Attempts = Mapping[tuple[int, int], TaskStatus]
"""Earlier attempts by replica and number."""


def earlier_attempts(tasks: Iterable[TaskStatus]) -> int:
    """Return how many attempts of replicas there were before those that they are in."""
    return sum(max(0, task.attempt - 1) for task in tasks)


class AttemptsFile:
    """That of one run of a job, where it is written.

    Args:
        path: Returns where it is; called when it is needed.
    """

    def __init__(self, path: Callable[[], str]) -> None:
        self._path = path
        self._noted: dict[int, int] = {}  # the last attempt of each replica that the file has
        self._cut = False  # whether its last line may lack its end

    def note(self, tasks: Iterable[TaskStatus]) -> None:
        """Append the earlier attempts that it does not have, where there are more than an entry holds."""
        tasks = tuple(tasks)
        if sum(len(task.previous) for task in tasks) <= EARLIER_IN_ENTRY:
            return
        new = [
            each
            for task in tasks
            for each in task.previous
            if each.attempt > self._noted.get(task.replica, 0)
        ]
        if not new:
            return
        begin = "\n" if self._cut else ""
        lines = [json.dumps(each.to_dict()) + "\n" for each in new]
        try:
            with Path(self._path()).open("a", encoding="utf-8") as file:
                file.write(begin + "".join(lines))
        except OSError:  # the disk is full; a part may be written, and all is once more when there is room
            self._cut = True
            return
        self._cut = False
        for each in new:
            self._noted[each.replica] = max(each.attempt, self._noted.get(each.replica, 0))

    def read_into(self, tasks: tuple[TaskStatus, ...]) -> tuple[TaskStatus, ...]:
        """Return replicas with what another process has written; nothing of that is written again."""
        try:
            written = read_attempts(Path(self._path()).read_text(encoding="utf-8"))
        except OSError:
            return tasks
        for replica, number in written:
            self._noted[replica] = max(number, self._noted.get(replica, 0))
        return completed(tasks, written)


def read_attempts(text: str) -> dict[tuple[int, int], TaskStatus]:
    """Return what a file has.

    A line that was cut off, by a full disk or because it is being written, is not an attempt.
    """
    found = {}
    for line in text.splitlines():
        try:
            attempt = TaskStatus.from_dict(json.loads(line))
        except UNREADABLE:
            continue
        found[attempt.replica, attempt.attempt] = attempt
    return found


def completed(tasks: Iterable[TaskStatus], attempts: Attempts) -> tuple[TaskStatus, ...]:
    """Return replicas with those of their earlier attempts that their job's entry does not hold."""
    by_replica: dict[int, dict[int, TaskStatus]] = {}
    for (replica, number), attempt in attempts.items():
        by_replica.setdefault(replica, {})[number] = attempt
    found = []
    for task in tasks:
        known = by_replica.get(task.replica, {}) | {each.attempt: each for each in task.previous}
        # The file may be later than the entry, and have the end of the attempt that runs in it.
        earlier = sorted(number for number in known if number < task.attempt)
        found.append(replace(task, previous=tuple(known[number] for number in earlier)))
    return tuple(found)
