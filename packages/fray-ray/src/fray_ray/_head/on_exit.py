"""Run a job's `on_exit` command on the head, when the job has ended."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fray.backend import exit_variables
from fray.cluster import JobInfo
from fray_ray._head.output import LogFile

_LONGEST = 600.0  # seconds that the command may take
_OURS = "FRAY_"


def run_on_exit(
    command: str,
    directory: str | None,
    spec: str,
    info: JobInfo,
    environ: Mapping[str, str],
    output: LogFile,
) -> None:
    """Run the command; what it writes goes into the job's log, and what fails stops nothing.

    Args:
        environ: The variables that it has beside those about the job.
    """
    folder = directory if directory is not None and Path(directory).is_dir() else None
    about = exit_variables(spec, info)
    variables = {**environ, **{name: about[name] for name in about if name.startswith(_OURS)}}
    try:
        with Path(output.path).open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                env=variables | {"PATH": about["PATH"]},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        output.write(f"[fray] on_exit was not run: {error}\n".encode())
        return
    try:
        process.wait(_LONGEST)
    except subprocess.TimeoutExpired:
        output.write(f"[fray] on_exit was ended after {_LONGEST:g} s\n".encode())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
