"""What a replica uses over time, measured on its node and written into the job's record.

All is bounded as where a supervisor measures it itself: see `UsageHistory`.
"""

from __future__ import annotations

import os
import time

from fray.backend import JOB_VARIABLE, SUPERVISOR_MODULE, UsageHistory, UsageMeter, descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource


class Samples:
    """Those of the attempt that this process's variables name, and that is below this process."""

    def __init__(self) -> None:
        replica, attempt = (int(os.environ[name]) for name in ("FRAY_REPLICA_ID", "FRAY_ATTEMPT"))
        self._history = UsageHistory(os.environ[JOB_VARIABLE], replica, attempt)
        self._meter = UsageMeter()

    def take(self) -> None:
        """Measure all its processes, without those of jobs that it has launched."""
        self._meter.sample(descendants(os.getpid(), spare=SUPERVISOR_MODULE))
        self._note()

    def end(self, used: resource.struct_rusage) -> dict[str, float | None]:
        """Take the system's figures at its program's end; return its memory at the most, and all CPU time."""
        self._meter.reaped(used)
        self._note(last=True)
        return {"peak_memory": self._meter.peak_memory, "cpu_time": self._meter.cpu_time}

    def _note(self, *, last: bool = False) -> None:
        meter = self._meter
        self._history.note(time.time(), meter.memory, meter.cpu_time or 0.0, last=last)
