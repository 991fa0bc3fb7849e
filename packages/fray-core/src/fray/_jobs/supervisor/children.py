"""The jobs that a job launched."""

import os

from fray._jobs.records.control_pipe import post_to_supervisor
from fray._jobs.records.files import CHILDREN, LOCK
from fray._jobs.records.liveness import Liveness, liveness_of


def tell_children(record: str, grace: float) -> bool:
    """Ask the jobs that a job launched to stop; whether any runs."""
    below, running = os.path.join(record, CHILDREN), False
    for name in os.listdir(below) if os.path.isdir(below) else ():
        child = os.path.join(below, name)
        if not name.startswith(".") and liveness_of(os.path.join(child, LOCK)) is Liveness.ALIVE:
            post_to_supervisor(child, f"stop {grace}")
            running = True
    return running
