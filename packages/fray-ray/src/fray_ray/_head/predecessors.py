"""What has become of the jobs that others are to run after, as the head's own store has them.

One look serves all jobs of a scheduler: a thousand that run after one job cost what one costs.
"""

import asyncio
import contextlib
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from fray.cluster import JobInfo, JobStatus
from fray_ray._head.asides import aside
from fray_ray._job_table import stored_entry
from fray_ray._lookup import find

_PHRASES = {JobStatus.FAILED: "failed", JobStatus.STOPPED: "was stopped"}
_LOOK = 1.0  # seconds between two looks at all of them
# From one look at all to the next is `_COST` times its duration, at most `_LONGEST` seconds: reading the
# entries of many is slow.
_COST, _LONGEST = 4, 10.0


def _state_of(job_id: str) -> JobInfo | None:
    """Return the state of a job; None where it was removed."""
    found = find(stored_entry, job_id)
    return None if found is None else found.info


def _unfinished(states: Mapping[str, JobInfo | None]) -> tuple[list[str], str | None]:
    """Return which of these jobs have not ended, and why what waits for them cannot start, if so."""
    waits_for = []
    for job_id, info in states.items():
        if info is None:
            return [], f"it was to run after job {job_id}, which was removed before it was known to succeed"
        if not info.finished:
            waits_for.append(job_id)
        elif (failure := failure_of(info)) is not None:
            return [], failure
    return waits_for, None


def failure_of(info: JobInfo) -> str | None:
    """Say that a job which has ended did not succeed; None where it did."""
    if info.status is JobStatus.SUCCEEDED:
        return None
    return f"it was to run after job {info.job_id}, which {_PHRASES[info.status]}"


class Predecessors:
    """The jobs that those of one scheduler run after."""

    def __init__(self) -> None:
        self._awaited: Counter[str] = Counter()
        self._states: dict[str, JobInfo | None] = {}
        self._new: set[str] = set()  # at which nobody has looked yet
        self._wanted = asyncio.Event()
        self._looked = asyncio.Event()  # another one for each look

    async def succeeded(
        self, job_ids: Iterable[str], say: Callable[[str], None] = lambda _: None
    ) -> str | None:
        """Wait until jobs have ended; return why what runs after them cannot start, where one failed.

        Args:
            say: Called with what is waited for, again and again.
        """
        wanted = list(job_ids)
        self._awaited.update(wanted)
        self._new.update(each for each in wanted if each not in self._states)
        self._wanted.set()
        try:
            while True:
                if all(each in self._states for each in wanted):
                    waits_for, failure = _unfinished({each: self._states[each] for each in wanted})
                    if failure is not None or not waits_for:
                        return failure
                    say(f"it runs after {', '.join(waits_for)}")
                await self._looked.wait()
        finally:
            self._forget(wanted)

    def _forget(self, job_ids: Iterable[str]) -> None:
        self._awaited.subtract(job_ids)
        for gone in [each for each, count in self._awaited.items() if count <= 0]:
            del self._awaited[gone]
            self._states.pop(gone, None)
            self._new.discard(gone)

    async def run(self) -> None:
        """Look, for ever: at those that are new at once, at all of them now and then."""
        all_at = 0.0
        while True:
            if not self._awaited:
                await self._wanted.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(all_at - time.monotonic()):
                    await self._wanted.wait()
            self._wanted.clear()
            begin = time.monotonic()
            looks_at_all = begin >= all_at
            job_ids, self._new = list(self._awaited if looks_at_all else self._new), set()
            await self._look(job_ids)
            if looks_at_all:
                all_at = begin + min(_LONGEST, max(_LOOK, _COST * (time.monotonic() - begin)))

    async def _look(self, job_ids: list[str]) -> None:
        try:
            found = await aside(lambda: {each: _state_of(each) for each in job_ids})
        except Exception:  # noqa: BLE001 - the head's store is away for a moment
            traceback.print_exc()
            return
        self._states.update({each: state for each, state in found.items() if each in self._awaited})
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()
