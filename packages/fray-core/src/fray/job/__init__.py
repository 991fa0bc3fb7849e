"""Tasks, objects and actors inside one job."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fray import _legacy
from fray._contexts.base import ContextBase
from fray._contracts.actor_handle import ActorEndpoint, ActorHandle, actor_methods
from fray._contracts.context import JobContext
from fray._contracts.refs import ObjectRef, ObjectStream
from fray._discovery.current import create_context, get_job_context, set_job_ctx, use_context
from fray._values.options import ActorOptions, Lifetime, RuntimeEnv, TaskOptions

if TYPE_CHECKING:
    from fray._jobs.replica.endpoints import register_endpoint
    from fray._jobs.replica.preemption_notice import PreemptionNotice, preemption_notice

    create_job_ctx = create_context  # these four are served by fray._legacy, which warns
    fray_default_job_ctx = use_context
    fray_job_ctx = get_job_context
    get_default_job_ctx = get_job_context

ExecutionContext = JobContext

__all__ = [
    "ActorEndpoint",
    "ActorHandle",
    "ActorOptions",
    "ContextBase",
    "ExecutionContext",
    "JobContext",
    "Lifetime",
    "ObjectRef",
    "ObjectStream",
    "PreemptionNotice",
    "RuntimeEnv",
    "TaskOptions",
    "actor_methods",
    "create_context",
    "get_job_context",
    "preemption_notice",
    "register_endpoint",
    "set_job_ctx",
    "use_context",
]


# Loaded when they are requested: they bring the job runtime, which no worker of a context needs.
_HOMES = {
    "PreemptionNotice": "fray._jobs.replica.preemption_notice",
    "preemption_notice": "fray._jobs.replica.preemption_notice",
    "register_endpoint": "fray._jobs.replica.endpoints",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        return _legacy.find_name(__name__, name)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
