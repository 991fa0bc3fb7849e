"""Programs that outlive the actor of their replica for a moment: no attempt begins before they have ended."""

import asyncio
import time

from fray_ray._head.record import JobRecord
from fray_ray._on_node.replica_actor import orphan_grace

_MARGIN = 1.0  # seconds from SIGKILL until a process supervisor has seen the whole tree end


class Orphans:
    """The programs of one job whose actors ended while their nodes live.

    The process supervisor of such a program ends it, and can no longer say when that is done. Therefore the
    time is waited for that it may take.
    """

    def __init__(self, record: JobRecord, *, gang: bool) -> None:
        self._record = record
        self._lives_for = orphan_grace(gang=gang) + _MARGIN

    def note(self, replica: int) -> None:
        """Note that the actor of a replica has ended, now at the latest."""
        self._record.orphans[replica] = time.time() + self._lives_for

    async def ended(self, *replicas: int) -> None:
        """Return when no program of these replicas is left; without any, of the whole job."""
        awaited = [each for each in replicas or self._record.orphans if each in self._record.orphans]
        if not awaited:
            return
        left = max(self._record.orphans[each] for each in awaited) - time.time()
        await asyncio.sleep(min(left, self._lives_for))  # the clock may have been set
        for each in awaited:
            self._record.orphans.pop(each, None)
