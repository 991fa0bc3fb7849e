"""Which member of a sweep is started next: what happens goes in, positions come out. Knows no process.

A member:   held (until what it runs after has ended) -> waiting -> started -> running -> ended
"""

import heapq
from collections.abc import Iterable, Mapping

from fray._values.job_words import JobStatus

STARTING_AT_ONCE = 8
"""Members that are started and do not run yet: each is a process that waits for room, or builds."""


class SweepOrder:
    """The members of a sweep.

    Args:
        after: What each member that runs after others waits for: positions, or ids of jobs elsewhere.
        max_parallel: How many members may be started and not ended; None for as many as there is room for.
    """

    def __init__(
        self, members: int, after: Mapping[int, Iterable[int | str]], max_parallel: int | None = None
    ) -> None:
        self._most = members if max_parallel is None else max_parallel
        self._statuses = [JobStatus.PENDING] * members
        self._held = {position: set(others) for position, others in after.items() if others}
        self._dependents: dict[int | str, list[int]] = {}
        for position, others in self._held.items():
            for other in others:
                self._dependents.setdefault(other, []).append(position)
        self._waiting = [position for position in range(members) if position not in self._held]  # a heap
        self._starting: set[int] = set()
        self._running: set[int] = set()

    @property
    def elsewhere(self) -> list[str]:
        """The jobs outside of the sweep that members wait for."""
        return [other for other in self._dependents if isinstance(other, str)]

    @property
    def started(self) -> set[int]:
        """The members that are started and have not ended."""
        return self._starting | self._running

    @property
    def finished(self) -> bool:
        """Whether every member has ended."""
        return all(status.finished for status in self._statuses)

    @property
    def unfinished(self) -> list[int]:
        """The members that have not ended."""
        return [position for position, status in enumerate(self._statuses) if not status.finished]

    @property
    def progress(self) -> dict[str, int]:
        """How many members have each status that one has."""
        counts = {str(status): self._statuses.count(status) for status in JobStatus}
        return {status: count for status, count in counts.items() if count}

    def with_status(self, status: JobStatus) -> list[int]:
        """Return the members that have a status."""
        return [position for position, each in enumerate(self._statuses) if each is status]

    def next_to_start(self) -> int | None:
        """Return the member that may be started now, and count it as started; None for none."""
        while self._waiting and len(self.started) < self._most and len(self._starting) < STARTING_AT_ONCE:
            position = heapq.heappop(self._waiting)
            if not self._statuses[position].finished:
                self._starting.add(position)
                return position
        return None

    def put_back(self, position: int) -> None:
        """A member could not be started just now."""
        self._starting.discard(position)
        heapq.heappush(self._waiting, position)

    def started_before(self, position: int) -> None:
        """A member was started by a coordinator before this one, and has not ended."""
        self._waiting = [each for each in self._waiting if each != position]
        heapq.heapify(self._waiting)
        for other in self._held.pop(position, set()):
            self._dependents[other].remove(position)
        self._starting.add(position)

    def runs(self, position: int) -> None:
        """A replica of a member has started."""
        if position in self._starting:
            self._starting.remove(position)
            self._running.add(position)
            self._statuses[position] = JobStatus.RUNNING

    def ended(self, position: int, status: JobStatus) -> None:
        """A member has ended, started or not."""
        self._starting.discard(position)
        self._running.discard(position)
        self._statuses[position] = status
        self._release(position)

    def ended_elsewhere(self, job_id: str) -> None:
        """A job outside of the sweep has ended."""
        self._release(job_id)

    def _release(self, other: int | str) -> None:
        """Release those that waited for it, however it ended: their own supervisors check that."""
        for position in self._dependents.pop(other, ()):
            others = self._held[position]
            others.discard(other)
            if not others:
                del self._held[position]
                heapq.heappush(self._waiting, position)
