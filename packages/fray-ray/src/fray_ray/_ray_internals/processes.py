"""What this process is to Ray: a driver, a worker that runs tasks; and where its node keeps logs."""

from typing import Any

import ray


def log_folder() -> str:
    """Return the folder of this node's logs, which the dashboard reads files out of. Read in Ray 2.60."""
    private: Any = ray._private
    return str(private.worker._global_node.get_logs_dir_path())


def driver_log(submission: str) -> str:
    """Return where Ray writes what a job's driver prints, on this node. Read in Ray 2.60."""
    return f"{log_folder()}/{driver_log_name(submission)}"


def driver_log_name(submission: str) -> str:
    """Return the name of that file among the logs of its node. Read in Ray 2.60."""
    return f"job-driver-{submission}.log"


def runs_tasks() -> bool:
    """Whether this process is one of Ray's workers, and no driver. Read in Ray 2.60."""
    private: Any = ray._private
    return bool(private.worker.global_worker.mode == ray.WORKER_MODE)
