"""The commands that Ray runs for a job on the head."""

import shlex
import sys
from collections.abc import Sequence

# The exit codes of a shell for a program that a signal ended are above the first. The second is that of
# SIGTERM, by which Ray and users end a job. The process itself ends with 0 or 1, whatever its job ended with.
_SIGNALLED, _ENDED = 128, 143
_PAUSE = 1  # seconds until it is started again
# So many times in a row it may die within so many seconds. One that dies at each start, because its Python
# does, would be started for ever, and its job would hold its room.
_MOST_DEATHS, _SOON = 10, 5
_LONGEST = 2_000  # characters that are shown of a job's own command


def job_process(
    submission: str,
    *,
    here: bool,
    command: Sequence[str] | None = None,
    shown: str | None = None,
    name: str = "",
) -> str:
    """Return the command of a job: of the process that stands for it, again where a signal kills that.

    Args:
        here: Whether the head is this machine, whose interpreter is there then.
        command: What the replicas run, for who reads Ray's table; None for a function.
        shown: The same as text, where it is known as that.
        name: That of the job.
    """
    process = _command("fray_ray._head.job_process", submission, "$$", "$PPID", here=here)
    program = shown or ("a function" if command is None else shlex.join(command))
    comment = f"{name}: {program}".replace("\n", " ")[:_LONGEST]
    # The shell waits for the process when Ray asks both to end. Where it asks during the pause, that ends the
    # pause, and the loop; so it is with each `date`.
    died = f"[ $code -gt {_SIGNALLED} ] && [ $code != {_ENDED} ] && now=$(date +%s)"
    count = f"{{ [ $((now - began)) -lt {_SOON} ] && deaths=$((deaths + 1)) || deaths=0; }}"
    again = f"{died} && {count} && [ $deaths -lt {_MOST_DEATHS} ] && sleep {_PAUSE}"
    once = f"began=$(date +%s) && {process}; code=$?; {again}"
    return f"trap : TERM; deaths=0; while {once}; do :; done; exit $code  # {comment}"


def scheduler(*, here: bool) -> str:
    """Return the command that gives a cluster its scheduler."""
    return f"exec {_command('fray_ray._head.start_scheduler', here=here)}"


def _command(module: str, *words: str, here: bool) -> str:
    python = shlex.quote(sys.executable) if here else "python"
    return " ".join([python, "-m", module, *words])
