"""Find the engine that a context type brings to the nodes of a job."""

from fray._contracts.gang_runtime import GangRuntime
from fray._discovery.plugins import GANG_RUNTIMES, load


def gang_runtime(context: str) -> GangRuntime:
    """Return what starts the engine of a context type on the nodes of a job.

    Raises:
        PluginNotFoundError: No installed wheel offers one for that type.
    """
    runtime: GangRuntime = load(GANG_RUNTIMES, context)
    return runtime
