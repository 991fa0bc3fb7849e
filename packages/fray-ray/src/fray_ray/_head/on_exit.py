"""Run a job's `on_exit` command on the head, when the job has ended."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from fray.backend import exit_variables
from fray.cluster import JobInfo

_LONGEST = 600.0  # seconds that the command may take


def run_on_exit(command: str, directory: str | None, spec: str, info: JobInfo) -> None:
    """Run the command; what it writes goes into the driver's log, and what fails stops nothing."""
    folder = directory if directory is not None and Path(directory).is_dir() else None
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], env=exit_variables(spec, info), cwd=folder, start_new_session=True
        )
    except OSError as error:
        print(f"[fray] on_exit was not run: {error}", flush=True)  # noqa: T201 - the driver's log
        return
    try:
        process.wait(_LONGEST)
    except subprocess.TimeoutExpired:
        print(f"[fray] on_exit was ended after {_LONGEST:g} s", flush=True)  # noqa: T201
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
