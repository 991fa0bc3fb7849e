"""The batch step, on the first node of an allocation: `python -m fray_slurm._batch RECORD COMMAND...`.

It notes what Slurm gave the job, runs COMMAND, the job's supervisor, and ends as the job has ended, so that
Slurm's own `--dependency=afterok` and `sacct` mean what they say.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fray_slurm._allocation import ALLOCATION, JOB, array_id, path_of, write
from fray_slurm._readings import fields_of, tasks_per_node
from fray_slurm._script import LOST_SUPERVISOR, NOT_SUCCEEDED

_SENT_TO_ALL = tuple(signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2"))


def main() -> None:
    """Note the allocation, supervise, and say to Slurm how that ended."""
    record, *command = sys.argv[1:]
    note_allocation(record)
    supervisor = subprocess.Popen(command)
    for number in _SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)  # Slurm sends them to all processes of the step
    supervisor.wait()
    from fray.backend import JobRecord  # not before: the job has waited for this process's start
    from fray.cluster import JobId, JobStatus

    status = JobRecord(Path(record), JobId(os.path.basename(record))).written().status  # noqa: PTH119
    if not status.finished:
        sys.exit(LOST_SUPERVISOR)
    sys.exit(0 if status is JobStatus.SUCCEEDED else NOT_SUCCEEDED)


def note_allocation(record: str) -> None:
    """Note which Slurm job this is, and what it has."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
    names = _output("scontrol", "show", "hostnames", variables["SLURM_JOB_NODELIST"]).split()
    counts = tasks_per_node(variables.get("SLURM_TASKS_PER_NODE", "1"))
    nodes = [name for name, count in zip(names, counts, strict=False) for _ in range(count)]
    address = names[0]
    if len(names) > 1:  # as Slurm itself reaches it, which need not be its name
        address = fields_of(_output("scontrol", "show", "node", "-o", names[0])).get("NodeAddr", address)
    # The launcher notes the id too, unless it was killed between the two.
    cluster = variables.get("SLURM_CLUSTER_NAME")
    write(path_of(record, JOB), {"id": array_id(variables), "cluster": cluster})
    write(path_of(record, ALLOCATION), {"variables": variables, "nodes": nodes, "address": address})


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout


if __name__ == "__main__":
    main()
