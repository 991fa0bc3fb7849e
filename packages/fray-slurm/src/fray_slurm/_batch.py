"""The batch step, on the first node of an allocation: `python -m fray_slurm._batch RECORD COMMAND...`.

It notes what Slurm gave the job, and becomes COMMAND, the job's supervisor.
"""

import os
import subprocess
import sys

from fray_slurm._allocation import ALLOCATION, JOB, path_of, write
from fray_slurm._readings import fields_of, tasks_per_node


def main() -> None:
    """Note the allocation, then supervise."""
    record, *command = sys.argv[1:]
    variables = {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
    job_id, cluster = variables["SLURM_JOB_ID"], variables.get("SLURM_CLUSTER_NAME")
    names = _output("scontrol", "show", "hostnames", variables["SLURM_JOB_NODELIST"]).split()
    counts = tasks_per_node(variables.get("SLURM_TASKS_PER_NODE", "1"))
    nodes = [name for name, count in zip(names, counts, strict=False) for _ in range(count)]
    address = names[0]
    if len(names) > 1:  # as Slurm itself reaches it, which need not be its name
        address = fields_of(_output("scontrol", "show", "node", "-o", names[0])).get("NodeAddr", address)
    # The launcher notes the id too, unless it was killed between the two.
    write(path_of(record, JOB), {"id": job_id, "cluster": cluster})
    write(path_of(record, ALLOCATION), {"variables": variables, "nodes": nodes, "address": address})
    os.execv(command[0], command)  # noqa: S606 - no shell is the point


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout


if __name__ == "__main__":
    main()
