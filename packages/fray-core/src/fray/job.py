"""Tasks, objects and actors inside one job."""

from typing import Any

from fray import _plugins
from fray._base import ContextBase
from fray._context import ActorEndpoint, ActorHandle, JobContext, ObjectRef, ObjectStream, actor_methods
from fray._current import create_context, get_job_context, use_context
from fray._options import ActorOptions, Lifetime, RuntimeEnv, TaskOptions

# The names of an earlier generation, for the code that still uses them.
ExecutionContext = JobContext
create_job_ctx = create_context
get_default_job_ctx = get_job_context
fray_default_job_ctx = use_context
fray_job_ctx = get_job_context

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
    "RuntimeEnv",
    "TaskOptions",
    "actor_methods",
    "create_context",
    "create_job_ctx",
    "fray_default_job_ctx",
    "fray_job_ctx",
    "get_default_job_ctx",
    "get_job_context",
    "use_context",
]


def __getattr__(name: str) -> Any:
    return _plugins.public_name("job", name)
