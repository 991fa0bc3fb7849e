"""The batch step, on the first node of an allocation: `bare_command("fray_slurm._batch")`, RECORD COMMAND....

A task of an array has `--member FOLDER BASE` for RECORD, whose place is the one that its number says. Imports
little: a job's start waits for it.

It notes what Slurm gave the job, runs COMMAND, the job's supervisor, and ends as the job has ended, so that
Slurm's own `--dependency=afterok` and `sacct` mean what they say.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from fray.backend import SUPERVISORS_IGNORE, job_path
from fray_slurm._allocation import (
    ALLOCATION,
    HELD_RECORD,
    JOB,
    LOCK,
    LOST_SUPERVISOR,
    NOT_SUCCEEDED,
    RECORD,
    SECRETS,
    array_id,
    path_of,
    read,
    write,
)
from fray_slurm._fields import read_nodes, tasks_per_node
from fray_slurm._signalling import Signalling, read_signalling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray.backend import JobRecord

CHILDREN = "jobs"  # in a record: those of the jobs that it launched
ENDED = ("succeeded", "failed", "stopped")  # as `JobStatus` has them
_TAKEN = tuple(signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "HUP", "QUIT"))  # by the supervisor
_TRIES = 3
_HELD_FOR = 300.0  # seconds; NFS keeps the locks of a host that failed until it is up again
_PAUSE = 1.0


def main() -> None:
    """Note the allocation, supervise, and report to Slurm how that ended."""
    record, command = _what_to_run(sys.argv[1:])
    if _is_replaced(record):
        sys.stderr.write("fray: the job was submitted again, and is another Slurm job's by now\n")
        sys.exit(NOT_SUCCEEDED)
    signalling = note_allocation(record)
    supervisor = Supervisor(record, command)
    for number in SUPERVISORS_IGNORE:
        signal.signal(number, signal.SIG_IGN)
    if not signalling.reaches_group:  # else the supervisor gets it from Slurm
        signal.signal(signal.SIGTERM, supervisor.hand_on)
    supervisor.run()
    written = read(os.path.join(record, "status.json"))  # noqa: PTH118
    status = written.get("status")
    if status not in ENDED:
        sys.exit(HELD_RECORD if supervisor.kept_out else LOST_SUPERVISOR)
    if os.path.exists(path_of(record, SECRETS)):  # noqa: PTH110
        _end_of_member(record)
    job = job_path(record)
    may_be_ended = status != "succeeded" or job != record  # of several replicas another one may have failed
    if may_be_ended and os.path.isdir(os.path.join(job, CHILDREN)):  # noqa: PTH112, PTH118
        # In an interpreter of its own: this one has only what it takes to start a job.
        command = [sys.executable, "-P", "-m", "fray_slurm._children", record, written["job_id"]]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    sys.exit(0 if status == "succeeded" else NOT_SUCCEEDED)


class Supervisor:
    """The job's supervisor.

    Args:
        command: Its command, which ends at once with code 0 where another process holds the record.
    """

    def __init__(self, record: str, command: list[str]) -> None:
        self._record, self._command = record, command
        self.kept_out = False
        """Whether it could not begin, because another process holds the record."""

    def run(self) -> None:
        """Run it to its end; once more where another process held the record.

        Of a job that Slurm has requeued, that may be its last supervisor: on a host that has failed, and
        whose locks the file system keeps for a while.
        """
        deadline = time.monotonic() + _HELD_FOR
        for _ in range(_TRIES):
            environ = os.environ | read(path_of(self._record, SECRETS))
            supervisor = subprocess.Popen(self._command, env=environ, preexec_fn=_take_signals)
            code = supervisor.wait()
            if code or _status(self._record) in ENDED:
                return
            while (held := _is_held(self._record)) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
            self.kept_out = held
            if held:
                return

    def hand_on(self, number: int, frame: object) -> None:
        """Hand a signal on to the supervisor: what was started is its guardian, which ignores it."""
        from fray.backend import descendants

        holder = _record(self._record).holder()
        if holder is not None and holder.pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder.pid, number)


def _take_signals() -> None:
    for number in _TAKEN:
        signal.signal(number, signal.SIG_DFL)


def _record(record: str) -> JobRecord:
    from pathlib import Path

    from fray.backend import JobRecord
    from fray.cluster import JobId

    return JobRecord(Path(record), JobId(os.path.basename(record)))  # noqa: PTH119


def _is_held(record: str) -> bool:
    from fray.backend import SupervisorLock

    lock = SupervisorLock.acquire(os.path.join(record, LOCK))  # noqa: PTH118
    if lock is None:
        return True
    lock.close()
    return False


def _what_to_run(words: list[str]) -> tuple[str, list[str]]:
    """Return the record, and the command of its supervisor."""
    if words[0] != "--member":
        return words[0], words[1:]
    folder, base, *command = words[1:]
    position = int(base) + int(os.environ["SLURM_ARRAY_TASK_ID"])
    record = os.path.join(folder, str(position))  # noqa: PTH118
    return record, [record if word == RECORD else word for word in command]


def _is_replaced(record: str) -> bool:
    """Whether another Slurm job was submitted for a record meanwhile.

    For its launcher Slurm had not taken this one, or it could not be cancelled.
    """
    noted = read(path_of(record, JOB))
    other = noted.get("name") not in (None, os.environ.get("SLURM_JOB_NAME"))
    return other and noted.get("id") != array_id(os.environ)


def _end_of_member(record: str) -> None:
    """After the end of a member of a sweep: the last one of all writes the end of the sweep."""
    members = os.path.dirname(record)  # noqa: PTH120
    # Mostly the last ones have not ended: few files are read.
    names = sorted(filter(str.isdecimal, os.listdir(members)), key=int, reverse=True)  # noqa: PTH208
    if all(_status(os.path.join(members, name)) in ENDED for name in names):  # noqa: PTH118
        _settle_sweep(os.path.dirname(members))  # noqa: PTH120
    with contextlib.suppress(FileNotFoundError):  # last: a step that was killed before does all of it again
        os.unlink(path_of(record, SECRETS))  # noqa: PTH108


def _status(record: str) -> str | None:
    # A record is readable with plain tools: `fray` itself would take longer to import than all else here.
    status: str | None = read(os.path.join(record, "status.json")).get("status")  # noqa: PTH118
    return status


def _settle_sweep(sweep: str) -> None:
    from pathlib import Path

    from fray.backend import JobRecord, settle_by_members
    from fray.cluster import JobId

    name = read(path_of(sweep, JOB)).get("sweep", os.path.basename(sweep))  # noqa: PTH119
    settle_by_members(JobRecord(Path(sweep), JobId(name)))


def note_allocation(record: str) -> Signalling:
    """Note which Slurm job this is, and what it has; return how Slurm signals it."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
    names = _output("scontrol", "show", "hostnames", variables["SLURM_JOB_NODELIST"]).split()
    counts = tasks_per_node(variables.get("SLURM_TASKS_PER_NODE", "1"))
    nodes = [name for name, count in zip(names, counts, strict=False) for _ in range(count)]
    # As Slurm itself reaches them, which need not be their names.
    shown = read_nodes(_output("scontrol", "show", "node", "-o", variables["SLURM_JOB_NODELIST"]))
    addresses = {name: shown.get(name, {}).get("NodeAddr", name) for name in names}
    # The launcher notes the id too, unless it was killed between the two.
    cluster = variables.get("SLURM_CLUSTER_NAME")
    name = variables.get("SLURM_JOB_NAME")
    write(path_of(record, JOB), {"id": array_id(variables), "cluster": cluster, "name": name})
    found = {"variables": variables, "nodes": nodes, "addresses": addresses}
    signalling = read_signalling(_output("scontrol", "show", "config"))
    write(path_of(record, ALLOCATION), {**found, "signalling": signalling.packed()})
    return signalling


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout
