"""The connections of the jobs' own processes (`job_process`) to the scheduler."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from fray_ray._head.job_process import END, STOP

_LARGEST = 1 << 24  # bytes of what a process says of itself


class ProcessLink:
    """One of them.

    Args:
        submission: The job whose process it is.
        cwd: Where that process runs.
        environ: Its variables.
    """

    def __init__(
        self, submission: str, cwd: str, environ: Mapping[str, str], writer: asyncio.StreamWriter
    ) -> None:
        self.submission, self.cwd, self.environ = submission, cwd, environ
        self._writer = writer

    def tell(self, code: int, *, stopped: bool = False) -> None:
        """Have the process end: with an exit code, or, of a job that was stopped, when Ray ends it."""
        with contextlib.suppress(OSError):  # it was killed
            self._writer.write(b"stopped\n" if stopped else f"exit {code}\n".encode())


async def serve_links(
    path: str,
    attach: Callable[[ProcessLink], None],
    detach: Callable[[ProcessLink], None],
    stop: Callable[[ProcessLink], None],
) -> asyncio.Server:
    """Take connections at a path, which only this user can reach.

    Args:
        attach: Called when a process has said whose it is.
        detach: Called when it is gone.
        stop: Called when Ray asks it to end.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = None
        try:
            link = _link(await reader.readuntil(END), writer)
            if link is None:
                return
            attach(link)
            while line := await reader.readline():
                if line == STOP:
                    stop(link)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return  # the process is gone, or it was none of ours
        finally:
            if link is not None:
                detach(link)
            writer.close()

    folder = Path(path).parent
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone: remove it")
    Path(path).unlink(missing_ok=True)
    return await asyncio.start_unix_server(serve, path, limit=_LARGEST)


def _link(said: bytes, writer: asyncio.StreamWriter) -> ProcessLink | None:
    words = said.removesuffix(END).decode(errors="surrogateescape").split("\0")
    if len(words) < 2:
        return None
    submission, cwd, *variables = words
    pairs = (variable.partition("=") for variable in variables)
    return ProcessLink(submission, cwd, {name: value for name, _, value in pairs}, writer)
