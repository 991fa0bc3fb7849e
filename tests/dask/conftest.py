"""A real Dask cluster: a scheduler and three workers, processes that their nannies start again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fray_dask.connection import connect

from fray.testing.gates import until
from fray.testing.leaks import leaks_nothing, own_temporary_folder  # noqa: F401

WORKERS = 3


@pytest.fixture(scope="session")
def address(own_temporary_folder: Path) -> Iterator[str]:  # noqa: F811
    """The address of a scheduler with workers."""
    folder = own_temporary_folder / "dask"
    folder.mkdir()
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    quiet = ["--no-dashboard", "--scheduler-file", str(file)]
    workers = ["--nworkers", str(WORKERS), "--nthreads", "4", "--local-directory", str(folder)]
    environment = {
        **os.environ,
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "10",
        "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error",
    }
    with (folder / "log").open("wb") as log:
        started = [
            subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            for command in (
                [*dask, "scheduler", "--port", "0", "--host", "127.0.0.1", *quiet],
                [*dask, "worker", *quiet, *workers],
            )
        ]
    try:
        text = until(lambda: file.exists() and file.read_text(), "the scheduler is up")
        assert isinstance(text, str)
        address = str(json.loads(text)["address"])
        with connect(address) as client:
            client.wait_for_workers(WORKERS, timeout=90)
        yield address
    finally:
        for process in reversed(started):
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program of Dask; one that is interrupted while it starts does not end by itself."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def process_wide() -> tuple[str, ...]:
    """What distributed makes once for a process."""
    return (r"thread Dask-", r"thread IO loop", r"thread TCP-Executor", r"thread Profile", r"thread asyncio_")
