"""What ends the commands of `fray queue work` when it is killed: nobody else knows them.

A process of its own reads from a pipe which commands run. The pipe ends with the pool, however that ends.
A command is known by a variable, so that what it has started is found wherever it hangs in the process tree.
The module is not in `_cli`, because that would have the process import the whole command line.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

from fray.backend import SUPERVISORS_IGNORE, kill_until_gone, with_variable

_COMMAND = "FRAY_QUEUE_COMMAND"


class OrphanKiller:
    """Kills the commands that run, with all that they have started, when this process is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watching(self) -> Iterator[dict[str, str]]:
        """Yield the environment of a command that starts in the block and has ended when it is left."""
        name = uuid4().hex
        self._tell(f"+{name}\n")
        try:
            yield {**os.environ, _COMMAND: name}
        finally:
            self._tell(f"-{name}\n")

    def close(self) -> None:
        """End it, when no command runs; what commands have left in the background runs on."""
        self._process.kill()  # it may not have started yet
        with self._lock:
            self._process.communicate()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(BrokenPipeError):  # it was killed: commands run all the same
            if not self._process.stdin.closed:  # by `close`, which waits for no thread
                os.write(self._process.stdin.fileno(), line.encode())


def main() -> None:
    """Read which commands run, and kill those that do when nobody says any more."""
    for number in SUPERVISORS_IGNORE:  # they are the pool's, which lets its commands finish
        signal.signal(number, signal.SIG_IGN)
    running: set[str] = set()
    for line in sys.stdin:
        change, name = line[0], line[1:].strip()
        (running.add if change == "+" else running.discard)(name)
    for name in running:
        kill_until_gone(partial(with_variable, _COMMAND, name))


if __name__ == "__main__":
    main()
