"""Read what Slurm's commands print: made-up text in, values out."""

import re
import time
from dataclasses import dataclass

from fray_slurm._fields import fields_of

_JOB_ID = re.compile(r"\d+(_\d+)?")  # of a job, or of a task of an array
QUEUE_FORMAT = "%i|%T|%l|%r|%j"
"""For `squeue -o`: never its default, which SQUEUE_FORMAT changes. The name is last: it may hold a `|`."""
ACCOUNT_FORMAT = "JobID,State,ExitCode,Reason,JobName"
_NUMBER = re.compile(r"[0-9]+")
_SUBMITTED = re.compile(r"(?:^|\s)(\d+)(?:;(\S+))?\s*$")
_SENTENCE = re.compile(r"Submitted batch job (\d+)(?: on cluster (\S+))?")


@dataclass(frozen=True)
class SlurmJob:
    """Slurm's state of a job.

    Args:
        job_id: `N`, or `N_I` for a task of an array; without a cluster.
        state: As Slurm spells it, without what follows it: `CANCELLED by 1000` is `CANCELLED`.
        by: The user id that cancelled it.
        exit_code: Of the batch step; None where it is not printed.
        signal: The signal that ended the batch step, or 0.
        restarts: How often Slurm has requeued it.
        preempted: Whether it is to make room for another job.
        limit: The time limit of its allocation as Slurm writes it, `1-00:00:00`; None where there is none.
        ends_at: When the limit is reached, in seconds since the epoch.
        name: None where it is not printed.
        nodes: As Slurm lists them, `n[1-2]`; "" where it has none, or they are not printed.
    """

    job_id: str
    state: str
    reason: str = ""
    by: str | None = None
    exit_code: int | None = None
    signal: int = 0
    restarts: int = 0
    preempted: bool = False
    limit: str | None = None
    ends_at: float | None = None
    name: str | None = None
    nodes: str = ""


def submitted_id(text: str) -> str | None:
    """Return the id of a job, `N` or `N;cluster`, from what `sbatch --parsable` printed.

    Banners may come before it, and where a site wraps sbatch, `--parsable` may be lost.
    """
    sentences = _SENTENCE.findall(text)
    if sentences:
        number, cluster = sentences[-1]
        return f"{number};{cluster}" if cluster else str(number)
    lines = [line for line in text.splitlines() if line.strip()]
    found = _SUBMITTED.fullmatch(lines[-1].strip()) if lines else None
    return None if found is None else found[1] + (f";{found[2]}" if found[2] else "")


def job_number(text: str) -> str | None:
    """Return the number that `squeue -h -o %F` printed, the last one; None where it is none."""
    numbers = [line.strip() for line in text.splitlines() if _NUMBER.fullmatch(line.strip())]
    return numbers[-1] if numbers else None


def read_queue(text: str) -> dict[str, SlurmJob]:
    """Read `squeue -h -o QUEUE_FORMAT`; a line that is none is passed over."""
    found = {}
    for line in text.splitlines():
        number, *rest = line.strip().split("|", 4)
        if _JOB_ID.fullmatch(number) and len(rest) >= 3:
            word, by = _state(rest[0])
            name = rest[3] if len(rest) > 3 else None
            found[number] = SlurmJob(number, word, _reason(rest[2]), by, limit=_limit(rest[1]), name=name)
    return found


def read_accounts(text: str) -> dict[str, SlurmJob]:
    """Read `sacct -X --parsable2 --noheader` in ACCOUNT_FORMAT; the last run of a requeued job counts."""
    found = {}
    for line in text.splitlines():
        number, *rest = line.strip().split("|", 4)
        if _JOB_ID.fullmatch(number) and len(rest) >= 2:
            state, by = _state(rest[0])
            code, number_of_signal = _exit(rest[1])
            reason = _reason(rest[2]) if len(rest) > 2 else ""
            name = rest[3] if len(rest) > 3 else None
            found[number] = SlurmJob(number, state, reason, by, code, number_of_signal, name=name)
    return found


def read_details(text: str) -> SlurmJob | None:
    """Read one job of `scontrol show job -o`; None where there is none."""
    values = fields_of(text)
    if "JobId" not in values or "JobState" not in values:
        return None
    state, by = _state(values["JobState"])
    code, number = _exit(values.get("ExitCode", ""))
    restarts = values.get("Restarts", "0")
    return SlurmJob(
        values["JobId"],
        state,
        _reason(values.get("Reason", "")),
        by,
        code,
        number,
        int(restarts) if restarts.isdigit() else 0,
        preempted=values.get("PreemptTime", "None") not in ("None", "Unknown", "N/A", ""),
        limit=_limit(values.get("TimeLimit", "")),
        ends_at=_moment(values.get("EndTime", "")),
        nodes=values.get("NodeList", "").replace("(null)", ""),
    )


def _state(text: str) -> tuple[str, str | None]:
    word, _, rest = text.strip().partition(" ")
    return word.rstrip("+"), rest.removeprefix("by ").strip() or None


def _reason(text: str) -> str:
    text = text.strip().strip("()")
    return "" if text in ("None", "N/A") else text


def _limit(text: str) -> str | None:
    # A batch job without a limit is shown as having one of a year.
    none = ("UNLIMITED", "365-00:00:00", "INVALID", "NOT_SET", "Partition_Limit", "")
    return None if text.strip() in none else text.strip()


def _moment(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # Unknown, None, N/A
        return None


def _exit(text: str) -> tuple[int | None, int]:
    code, colon, number = text.strip().partition(":")
    if not colon or not code.isdigit() or not number.isdigit():
        return None, 0
    return int(code), int(number)
