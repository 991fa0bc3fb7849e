"""What a cluster's scheduler is called, by those who start it and those who talk to it."""

import hashlib
import os
from importlib.metadata import version

VERSION = version("fray-ray")
NAME = f"scheduler-{VERSION}"
"""The name of the scheduler's actor: jobs of another version of Fray have a scheduler of their own."""
SUBMISSION = f"fray-scheduler-{VERSION}"
"""The Ray job that has started the scheduler; a cluster that has it has a scheduler."""
GRACE_OF_LOST = 5.0
"""Seconds that replicas have of a job which Ray has lost."""
RAYS_GRACE = 2.0
"""Seconds that they have where Ray stops the job: Ray kills its process three seconds after the SIGTERM."""

_LONGEST = 60  # characters of a folder, so that the path of a socket is not too long


def socket_path(address: str) -> str:
    """Return where the scheduler of a cluster listens for the processes of its jobs.

    Args:
        address: That of the head, as `RAY_ADDRESS` in a job has it.
    """
    folder = os.environ.get("RAY_TMPDIR") or "/tmp"  # noqa: S108 - below it is one of this user alone
    name = hashlib.sha256(f"{address} {VERSION}".encode()).hexdigest()[:16]
    return f"{folder if len(folder) < _LONGEST else '/tmp'}/fray-{os.getuid()}/{name}"  # noqa: S108
