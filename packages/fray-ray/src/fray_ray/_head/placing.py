"""Waiting for room, and telling what is waited for."""

import threading
import time

from fray.cluster import ExitReason, JobStatus
from fray_ray._head.job_state import Outcome, Progress
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan

_LOOK = 0.2  # seconds
STOPPED = Outcome(JobStatus.STOPPED, ExitReason.STOPPED, None)


def find_room(room: Reservation, plan: Plan, progress: Progress, stopping: threading.Event) -> Outcome | None:
    """Wait until every replica has its place; return why that will not be."""
    started = time.monotonic()
    while not room.placed(_LOOK):
        if stopping.is_set():
            return STOPPED
        progress.wait_for(room.why_not_placed())
        limit = plan.placement_timeout
        if limit is not None and time.monotonic() - started > limit:
            message = f"not placed within {limit:g} s: {room.why_not_placed()}"
            return Outcome(JobStatus.FAILED, ExitReason.COULD_NOT_START, message)
    progress.wait_for("starting its replicas")
    return STOPPED if stopping.is_set() else None
