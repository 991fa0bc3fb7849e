"""End what is left of a job that Ray has lost; run by Ray: `python -m fray_ray._head.lost_job SUBMISSION`.

Its own process was killed, so nobody wrote its last word. Its replicas, its room, the jobs below it, its
detached actors and its variables in the head's memory are left to this. The guardian of a job runs it as
well, with another word: it waits until Ray has noticed.
"""

import logging
import os
import signal
import socket
import sys
import time

import ray

from fray.cluster import poll_delays
from fray_ray import _job_kv
from fray_ray._head.descendants import end_family
from fray_ray._head.outliving import NAMESPACE, end_leftovers
from fray_ray._job_table import TERMINAL, JobEntry, TableEntry, is_lost, read, stored_entry
from fray_ray._ray_internals.environment import ADDRESS

_GRACE = 10.0  # seconds for the jobs below it
_GRACE_OF_REPLICAS = 5.0  # seconds
_NOTICED_WITHIN = 60.0  # seconds
_LONGEST = 180  # seconds for a guardian, whose cluster may be gone
_ANSWERS_WITHIN = 5.0  # seconds


def main(submission: str, *guardian: str) -> int:
    """End it, and write the last word; nothing happens to a job that is not lost."""
    if guardian:
        signal.alarm(_LONGEST)
        if not _has_head():
            return 0
    ray.init(namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
    entry = _ended(submission) if guardian else stored_entry(submission)
    info = None if entry is None else read(entry)
    state = _job_kv.fetch(_job_kv.state_name(submission))
    if entry is None or info is None or not (is_lost(entry) or (state and entry.status in TERMINAL)):
        return 0
    end_leftovers(submission, _GRACE_OF_REPLICAS)
    end_family(info.job_id, submission, _GRACE)
    kept = {_job_kv.plan_name(submission), _job_kv.workspace_name(submission)}  # for a retry
    _job_kv.delete_all(submission, but=kept)
    TableEntry(submission).write(info, endpoints=[])
    return 0


def _ended(submission: str) -> JobEntry | None:
    """Return the entry of a job whose process was killed, when Ray has noticed."""
    deadline = time.monotonic() + _NOTICED_WITHIN
    for pause in poll_delays(longest=1.0):
        entry = stored_entry(submission)
        if entry is None or entry.status in TERMINAL or time.monotonic() > deadline:
            return entry
        time.sleep(pause)
    raise AssertionError("the pauses do not end")


def _has_head() -> bool:
    """Whether the head is there: Ray asks for it for long."""
    host, _, port = os.environ.get(ADDRESS, "").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWERS_WITHIN).close()
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
