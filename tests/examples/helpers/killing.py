"""Faults to inject: processes that die without a word."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def killer(job: str, times: int) -> Iterator[set[int]]:
    """Kill a replica of this test's jobs now and then; the set is of the process ids that are no more.

    Args:
        job: What the last part of the job's id begins with.
    """
    killed: set[int] = set()
    over = threading.Event()

    def kill() -> None:
        while len(killed) < times and not over.wait(0.2):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    environ = process.environ()
                    ours = environ.get("FRAY_STATE_DIR") == os.environ["FRAY_STATE_DIR"]
                    job_id = environ.get("FRAY_JOB_ID", "").rpartition("/")[2]
                    if ours and job_id.startswith(job) and "FRAY_REPLICA_ID" in environ:
                        process.kill()
                        killed.add(process.pid)
                        break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
