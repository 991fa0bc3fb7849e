"""The messages between a job's parts, as files of its record, in RECORD/slurm/.

job.json                 the id of the Slurm job and its name; of a sweep, how often it was run
options.json             of sbatch, by which it is submitted again; of a sweep, by member
script.sh                what was submitted
slurm.log                what the batch step wrote
allocation.json          the variables that Slurm gave the batch step, and the node of each replica
secrets.json         variables of a member of a sweep that are in no plan, for its supervisor
replica-N.PID.X.json     a step: its id, its run, how its program ended; PID is of the process that started it
"""

from __future__ import annotations

import json
import os

from fray.backend import NamedTuple
from fray_slurm._signalling import Signalling, signalling_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FOLDER = "slurm"
JOB, SCRIPT, ALLOCATION, SECRETS = "job.json", "script.sh", "allocation.json", "secrets.json"
OPTIONS = "options.json"
NOT_SUCCEEDED, LOST_SUPERVISOR, MISSING_FOLDER, HELD_RECORD = 1, 96, 97, 98
"""Exit codes of a batch step: its job has failed or was stopped, and the record says how; its supervisor was
killed; its node does not see the record; another process holds the record."""
PORTS_CHECKED = "_FRAY_CHECK_PORTS"
"""A variable that is set where the job's ports were chosen on another node than that of the replica."""
LOCK = "lock"  # of a record
TOLD = ".told"  # beside the note of a step, with a word in it where Fray itself wants its end
RECORD = "{record}"  # in the command of a supervisor that each task of an array completes
# What srun takes for its own options; each step says these itself.
_OPTIONS_OF_SRUN = frozenset(
    {
        *(
            "SLURM_NTASKS",
            "SLURM_NPROCS",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_CPUS_PER_TASK",
            "SLURM_DISTRIBUTION",
        ),
        *("SLURM_GRES", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_MEM_PER_NODE"),
        *("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_TASKS_PER_NODE"),
        *("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE"),
    }
)


class Allocation(NamedTuple):
    """What Slurm gave one run of a job.

    Args:
        variables: SLURM_* of the batch step.
        nodes: The node of each replica in it.
        addresses: Where peers reach each node.
        signalling: How Slurm signals its steps; the grace is not known here.
    """

    variables: Mapping[str, str]
    nodes: tuple[str, ...]
    addresses: Mapping[str, str]
    signalling: Signalling = Signalling()

    @property
    def job_id(self) -> str:
        """The Slurm job's number, that of a task where it is one of an array."""
        return array_id(self.variables)

    def node_of(self, replica: int) -> str:
        """Return the node of a replica: one that has an allocation of its own is alone in it."""
        return self.nodes[replica if len(self.nodes) > 1 else 0]

    def step_variables(self) -> dict[str, str]:
        """Return what srun needs to know of the allocation, without what would be options of the step."""
        return {name: value for name, value in self.variables.items() if name not in _OPTIONS_OF_SRUN}

    def memory_option(self, node: str) -> list[str]:
        """Return srun's option for the share of one replica: a step without it takes all, and others wait."""
        by_cpu, by_node = self.variables.get("SLURM_MEM_PER_CPU"), self.variables.get("SLURM_MEM_PER_NODE")
        if by_cpu is not None:
            return [f"--mem-per-cpu={by_cpu}M"]
        if by_node is not None and by_node.isdigit():
            return [f"--mem={int(by_node) // max(1, self.nodes.count(node))}M"]
        return []


def run_id(variables: Mapping[str, str]) -> str:
    """Name a run of a Slurm job: one that is requeued keeps its number, and its steps count from 0 again."""
    return f"{variables['SLURM_JOB_ID']} restarted {variables.get('SLURM_RESTART_COUNT', '0')}"


def array_id(variables: Mapping[str, str]) -> str:
    """Return a job's number as all of Slurm's commands take it: `7`, or `6_1` for a task of an array.

    A task has a number of its own too; but that of the last one is the array's, and means all of it.
    """
    if "SLURM_ARRAY_TASK_ID" in variables:
        return f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
    return variables["SLURM_JOB_ID"]


def path_of(record: str, name: str) -> str:
    """Return the path of one of these files."""
    return os.path.join(record, FOLDER, name)  # noqa: PTH118 - pathlib costs the batch step its import


def write(path: str, values: Mapping[str, Any]) -> None:
    """Replace a file by another, as a whole."""
    draft = f"{path}.{os.getpid()}.new"
    with open(draft, "w") as file:  # noqa: PTH123
        json.dump(values, file)
    os.replace(draft, path)  # noqa: PTH105


def read(path: str) -> dict[str, Any]:
    """Return what such a file holds; nothing where it is not there."""
    try:
        with open(path) as file:  # noqa: PTH123
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_allocation(record: str) -> Allocation:
    """Return the allocation of the run that is on."""
    found = read(path_of(record, ALLOCATION))
    # An allocation of the release before has none.
    signalling = signalling_in(found["signalling"]) if "signalling" in found else Signalling()
    return Allocation(found["variables"], tuple(found["nodes"]), found["addresses"], signalling)
