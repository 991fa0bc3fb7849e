"""`fray ui` as a user starts it."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

SPEC = "local?overcommit=true"
FRAY = [sys.executable, "-m", "fray"]


class Started(NamedTuple):
    """A running `fray ui`: what it shows, the link that it printed, and its process."""

    spec: str
    link: str
    pid: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.link.partition("?")[0]

    @property
    def token(self) -> str:
        """What its link has."""
        return self.link.partition("token=")[2]


@contextlib.contextmanager
def started_ui(spec: str) -> Iterator[Started]:
    """Start it; Ctrl-C ends it well."""
    with subprocess.Popen([*FRAY, "ui", "--cluster", spec], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Started(spec, process.stdout.readline().strip(), process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
