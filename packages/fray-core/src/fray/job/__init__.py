"""Tasks, objects and actors inside one job."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fray import _legacy
from fray._contexts.base import ContextBase
from fray._contracts.context import (
    ActorEndpoint,
    ActorHandle,
    JobContext,
    ObjectRef,
    ObjectStream,
    actor_methods,
)
from fray._discovery.current import create_context, get_job_context, set_job_ctx, use_context
from fray._jobs.preemption import PreemptionNotice, preemption_notice
from fray._values.options import ActorOptions, Lifetime, RuntimeEnv, TaskOptions

if TYPE_CHECKING:
    create_job_ctx = create_context  # these four are served by fray._legacy, which warns
    fray_default_job_ctx = use_context
    fray_job_ctx = get_job_context
    get_default_job_ctx = get_job_context
    from fray._engine.context import InProcessContext
    from fray._engine.pool import WorkerPool

ExecutionContext = JobContext

__all__ = [
    "ActorEndpoint",
    "ActorHandle",
    "ActorOptions",
    "ContextBase",
    "ExecutionContext",
    "InProcessContext",
    "JobContext",
    "Lifetime",
    "ObjectRef",
    "ObjectStream",
    "PreemptionNotice",
    "RuntimeEnv",
    "TaskOptions",
    "WorkerPool",
    "actor_methods",
    "create_context",
    "get_job_context",
    "preemption_notice",
    "set_job_ctx",
    "use_context",
]


# Loaded when asked for: who only submits tasks to another backend does not need what runs them here.
_HOMES = {"InProcessContext": "context", "WorkerPool": "pool"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fray._engine.{_HOMES[name]}"), name)
    return _legacy.find_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
