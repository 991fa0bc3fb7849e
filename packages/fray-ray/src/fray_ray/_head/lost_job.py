"""End what is left of a job that Ray has lost; run by Ray: `python -m fray_ray._head.lost_job SUBMISSION`.

Its driver was killed, so nobody wrote its last word. Ray ends the replicas; the jobs below it, its detached
actors and its variables in the head's memory are left to this.
"""

import logging
import sys

import ray

from fray_ray import _job_kv
from fray_ray._head.descendants import end_family
from fray_ray._job_table import TableEntry, is_lost, read, stored_entry

_GRACE = 10.0  # seconds for the jobs below it


def main(submission: str) -> int:
    """End it, and write the last word; nothing happens to a job that is not lost."""
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    entry = stored_entry(submission)
    info = None if entry is None else read(entry)
    if entry is None or info is None or not is_lost(entry):
        return 0
    end_family(info.job_id, submission, _GRACE)
    kept = {_job_kv.plan_name(submission), _job_kv.workspace_name(submission)}  # for a retry
    _job_kv.delete_all(submission, but=kept)
    TableEntry(submission).write(info, endpoints=[])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
