"""The input and the output of a command, until it has ended.

`Popen.communicate` reads until the last process has closed the output, and a command may leave one in the
background. Here the end of the command itself counts.
"""

import os
import select
import selectors
import subprocess
import time
from typing import IO

_LOOK = 0.25  # seconds between two looks whether a command has ended whose output is still open
_LATE = 0.5  # seconds in which what a command has left behind may still write
_PIPE = 1 << 20  # bytes; no pipe holds more, so that one read takes all that a command has written


def exchange(
    process: "subprocess.Popen[bytes]", given: bytes, timeout: float | None, written: list[bytes]
) -> bool:
    """Give a process its input, add what it writes to `written`, and return when it has ended.

    Returns:
        Whether it has ended, within `timeout` seconds. Where it has not, another call continues.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        _register(selector, process, given)
        left, ended = memoryview(given), False
        while selector.get_map():
            now = time.monotonic()
            if not ended and process.poll() is not None:
                ended, deadline = True, now + _LATE
            if deadline is not None and now >= deadline:
                return ended
            for key, _ in selector.select(_LOOK if deadline is None else min(_LOOK, deadline - now)):
                file: IO[bytes] = key.data
                if file is process.stdout:
                    written.append(os.read(key.fd, _PIPE))
                    done = not written[-1]
                else:
                    left = left[_write(key.fd, left) :]
                    done = not left
                if done:
                    selector.unregister(file)
                    file.close()
    try:
        process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _register(selector: selectors.BaseSelector, process: "subprocess.Popen[bytes]", given: bytes) -> None:
    output, stdin = process.stdout, process.stdin
    if output is not None and not output.closed:
        selector.register(output, selectors.EVENT_READ, output)
    if stdin is not None and not stdin.closed:
        if given:
            selector.register(stdin, selectors.EVENT_WRITE, stdin)
        else:
            stdin.close()


def _write(fd: int, left: memoryview) -> int:
    """Write what a pipe takes without waiting; return how much is written, all where nobody reads it."""
    try:
        return os.write(fd, left[: select.PIPE_BUF])
    except BrokenPipeError:
        return len(left)
