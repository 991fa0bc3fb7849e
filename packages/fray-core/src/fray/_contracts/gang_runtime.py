"""What a context type needs on the nodes of a job, where the job brings its engine along."""

from collections.abc import Sequence
from typing import Protocol


class GangRuntime(Protocol):
    """A context's engine that belongs to one job: started on the nodes of its gang, and gone with it.

    A wheel offers one by the entry point `fray.gang_runtimes`, under the name of its context type. A cluster
    that grants nodes runs the command that this returns as every replica of a gang. The program itself then
    runs once, in replica 0, and finds in its environment how `get_job_context()` joins the engine.
    """

    def command(
        self, program: Sequence[str], *, python: str, cpus: int, memory: int, gpus: int = 0
    ) -> list[str]:
        """Return what each replica runs instead of `program`.

        It may rely on the variables of a gang (`FRAY_REPLICA_ID`, `FRAY_COORDINATOR_ADDRESS`, ...) and on the
        job's record, a folder that all its nodes see. It ends as the program ends.

        Args:
            python: The job's interpreter.
            cpus: CPUs of one replica.
            memory: Bytes of memory of one replica.
            gpus: GPUs of one replica.
        """
        ...
