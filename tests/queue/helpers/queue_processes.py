"""Real processes for the queue tests: servers and workers, ended by their process id."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fray_queue import FileQueue


class ServerProcess:
    """`fray queue serve` on a free port, which a restart keeps."""

    def __init__(self, store: Path | None, *arguments: str, env: dict[str, str] | None = None) -> None:
        self._store, self._arguments, self._env = store, arguments, env or {}
        self.port = "0"
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "fray",
            "queue",
            "serve",
            "--port",
            self.port,
        ]
        command += ["--store", str(self._store)] if self._store else []
        self.process = subprocess.Popen(
            [*command, *self._arguments], stdout=subprocess.PIPE, text=True, env={**os.environ, **self._env}
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, f"the server did not start: exit code {self.process.wait()}"
        self.port = self.url.rpartition(":")[2]

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> int:
        self.process.terminate()
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return what a condition gives once it is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value


def take_all(path: str, options: dict[str, Any]) -> list[tuple[int, int]]:
    """Take items until there are none for a while; what a worker process does."""
    taken = []
    with FileQueue[int](path, **options) as queue:
        while lease := queue.pop(wait=1.0):
            taken.append((lease.item, lease.attempt))
            queue.done(lease)
    return taken


def check_forked(act: Callable[[], object]) -> None:
    """Do something in a forked child, which must end, and well."""
    child = multiprocessing.get_context("fork").Process(target=act)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of fork in a process with threads
        child.start()
    child.join(30)
    ended = child.exitcode
    child.kill()
    child.join()
    assert ended is not None, "the child waits for ever"
    assert ended == 0
