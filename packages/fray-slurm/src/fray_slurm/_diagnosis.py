"""What `fray doctor` checks of Slurm: its commands, and whether its controller answers."""

import shutil
from collections.abc import Iterator

from fray import FrayError
from fray.backend import Finding, Health
from fray_slurm._client import SlurmClient

_NEEDED = ("sbatch", "squeue", "scontrol", "scancel", "srun")


def check_slurm(client: SlurmClient) -> Iterator[Finding]:
    """Yield the findings about the Slurm of this host."""
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        yield Finding(
            check="commands",
            health=Health.ERROR,
            found=f"not on the PATH: {', '.join(missing)}",
            advice="work on a login node of the cluster, or load its module",
        )
        return
    yield Finding(check="commands", health=Health.OK, found=str(shutil.which("sbatch")))
    try:
        nodes = len(client.nodes())
    except FrayError as error:
        advice = "see `scontrol ping`; running jobs continue, and are seen again when it answers"
        yield Finding(check="controller", health=Health.ERROR, found=str(error), advice=advice)
    else:
        yield Finding(check="controller", health=Health.OK, found=f"{nodes} nodes")
