"""The batch step, on the first node of an allocation: `bare_command("fray_slurm._batch")`, RECORD COMMAND....

A task of an array has `--member FOLDER BASE` for RECORD, whose place is the one that its number says. Imports
little: a job's start waits for it.

It notes what Slurm gave the job, runs COMMAND, the job's supervisor, and ends as the job has ended, so that
Slurm's own `--dependency=afterok` and `sacct` mean what they say.
"""

import contextlib
import os
import signal
import subprocess
import sys

from fray.backend import job_path
from fray_slurm._allocation import (
    ALLOCATION,
    JOB,
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

CHILDREN = "jobs"  # in a record: those of the jobs that it launched
ENDED = ("succeeded", "failed", "stopped")  # as `JobStatus` has them
_SENT_TO_ALL = tuple(signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2"))


def main() -> None:
    """Note the allocation, supervise, and report to Slurm how that ended."""
    record, command = _what_to_run(sys.argv[1:])
    if _is_replaced(record):
        sys.stderr.write("fray: the job was submitted again, and is another Slurm job's by now\n")
        sys.exit(NOT_SUCCEEDED)
    note_allocation(record)
    supervisor = subprocess.Popen(command, env=os.environ | read(path_of(record, SECRETS)))
    for number in _SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)  # Slurm sends them to all processes of the step
    supervisor.wait()
    # A record is readable with plain tools: `fray` itself would take longer to import than all else here.
    written = read(os.path.join(record, "status.json"))  # noqa: PTH118
    status = written.get("status")
    if status not in ENDED:
        sys.exit(LOST_SUPERVISOR)
    if os.path.exists(path_of(record, SECRETS)):  # noqa: PTH110
        _end_of_member(record)
    job = job_path(record)
    may_be_ended = status != "succeeded" or job != record  # of several replicas another one may have failed
    if may_be_ended and os.path.isdir(os.path.join(job, CHILDREN)):  # noqa: PTH112, PTH118
        # In an interpreter of its own: this one has only what it takes to start a job.
        command = [sys.executable, "-P", "-m", "fray_slurm._children", record, written["job_id"]]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    sys.exit(0 if status == "succeeded" else NOT_SUCCEEDED)


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
    if all(_has_ended(os.path.join(members, name)) for name in names):  # noqa: PTH118
        _settle_sweep(os.path.dirname(members))  # noqa: PTH120
    with contextlib.suppress(FileNotFoundError):  # last: a step that was killed before does all of it again
        os.unlink(path_of(record, SECRETS))  # noqa: PTH108


def _has_ended(record: str) -> bool:
    status = read(os.path.join(record, "status.json")).get("status")  # noqa: PTH118
    return status in ENDED


def _settle_sweep(sweep: str) -> None:
    from pathlib import Path

    from fray.backend import JobRecord, settle_by_members
    from fray.cluster import JobId

    name = read(path_of(sweep, JOB)).get("sweep", os.path.basename(sweep))  # noqa: PTH119
    settle_by_members(JobRecord(Path(sweep), JobId(name)))


def note_allocation(record: str) -> None:
    """Note which Slurm job this is, and what it has."""
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
    write(path_of(record, ALLOCATION), {"variables": variables, "nodes": nodes, "addresses": addresses})


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout
