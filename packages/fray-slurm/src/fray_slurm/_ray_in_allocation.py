"""A job that brings the engine of its context along: Ray across its own allocation.

The variable FRAY_CONTEXT_SPEC of a request (`fray run --context ray`) names the context of its program. Where
that is one whose engine runs on several nodes, and it says neither where one runs nor that it is to be of
this host alone, then the job starts its own, on its own nodes. The program then runs once.
"""

import math
from collections.abc import Sequence

from fray import SpecError, UnsupportedError
from fray.backend import GangRuntime, Spec, gang_runtime
from fray.cluster import EnvironmentConfig, GpuConfig, JobRequest

_ACROSS_NODES = frozenset({"ray"})  # context types; every other runs in the process of its program
_ELSEWHERE = frozenset({"address", "local"})


def runtime_of(request: JobRequest) -> GangRuntime | None:
    """Return what starts the engine of a job's context on its own nodes; None where it needs none.

    Raises:
        PluginNotFoundError: The wheel of that context is not installed.
        UnsupportedError: The request says that the replicas are not a gang.
    """
    spec = _context_of(request)
    if spec is None or spec.name not in _ACROSS_NODES or _ELSEWHERE & set(spec.options):
        return None
    if request.gang is False:
        raise UnsupportedError(
            f"job {request.name!r} has the context {str(spec)!r}, one program on all of its nodes, and asks "
            "for replicas that are independent (gang=False): leave gang=None, or give the context an address"
        )
    return gang_runtime(spec.name)


def with_runtime(runtime: GangRuntime, request: JobRequest, python: str, program: Sequence[str]) -> list[str]:
    """Return what each replica runs, so that the engine is there before the program and gone after it."""
    resources = request.resources
    device = resources.device
    return runtime.command(
        program,
        python=python,
        cpus=math.ceil(resources.cpu),
        memory=resources.ram_bytes,
        gpus=device.count if isinstance(device, GpuConfig) else 0,
    )


def _context_of(request: JobRequest) -> Spec | None:
    variables = (request.environment or EnvironmentConfig()).env_vars
    text = variables.get("FRAY_CONTEXT_SPEC")
    try:
        return Spec.parse(text) if text else None
    except SpecError:
        return None  # the program says so, where it opens its context
