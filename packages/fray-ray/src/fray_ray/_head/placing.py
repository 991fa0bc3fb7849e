"""Waiting for room, and telling what is waited for."""

import threading
import time

from fray.backend import poll_delays
from fray.cluster import ExitReason, JobStatus
from fray_ray._head.job_state import Outcome, Progress
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan

_LOOK = 1.0  # seconds between looks at the cluster by a job that has waited for a while
STOPPED = Outcome(JobStatus.STOPPED, ExitReason.STOPPED, None)


def find_room(room: Reservation, plan: Plan, progress: Progress, stopping: threading.Event) -> Outcome | None:
    """Wait until every replica has its place; return why that will not be."""
    started = time.monotonic()
    for pause in poll_delays(longest=_LOOK):
        if room.placed(0.0):
            break
        if stopping.wait(pause):
            return STOPPED
        progress.wait_for(room.why_not_placed())
        limit = plan.placement_timeout
        if limit is not None and time.monotonic() - started > limit:
            message = f"not placed within {limit:g} s: {room.why_not_placed()}"
            return Outcome(JobStatus.FAILED, ExitReason.COULD_NOT_START, message)
    progress.wait_for("starting its replicas")
    return STOPPED if stopping.is_set() else None
