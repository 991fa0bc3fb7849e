"""Write distributed code once; choose where it runs when you run it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fray import _legacy
from fray._contexts.base import ContextBase
from fray._contracts.actor_handle import ActorHandle
from fray._contracts.context import JobContext
from fray._contracts.refs import ObjectRef, ObjectStream
from fray._discovery.current import (
    create_cluster,
    create_context,
    current_cluster,
    get_job_context,
    set_current_cluster,
    set_job_ctx,
    use_cluster,
    use_context,
)
from fray._values.errors import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorNotFoundError,
    ClusterUnavailableError,
    ContextClosedError,
    DeadlockError,
    FrayError,
    GetTimeoutError,
    JobFailedError,
    JobNotFoundError,
    LeaseExpiredError,
    NoReplyError,
    PluginConflictError,
    PluginError,
    PluginLoadError,
    PluginNotFoundError,
    QueueFullError,
    QueueUnavailableError,
    SerializationError,
    SpecError,
    TaskCancelledError,
    TaskError,
    UnreadableItemError,
    UnsupportedError,
    WorkerDiedError,
    WrongProcessError,
)
from fray._values.options import ActorOptions, Lifetime, RuntimeEnv, TaskOptions

__version__ = "0.2.0"

ExecutionContext = JobContext
_legacy.install_finder()

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._values.entrypoint import Entrypoint
    from fray._values.environment import EnvironmentConfig, create_environment
    from fray._values.jobs import JobId, JobInfo, JobRequest, JobStatus
    from fray_resources import CpuConfig, GpuConfig, ResourceConfig, TpuConfig

    create_job_ctx = create_context  # these four are served by fray._legacy, which warns
    fray_default_job_ctx = use_context
    fray_job_ctx = get_job_context
    get_default_job_ctx = get_job_context

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandle",
    "ActorNotFoundError",
    "ActorOptions",
    "Cluster",
    "ClusterUnavailableError",
    "ContextBase",
    "ContextClosedError",
    "CpuConfig",
    "DeadlockError",
    "Entrypoint",
    "EnvironmentConfig",
    "ExecutionContext",
    "FrayError",
    "GetTimeoutError",
    "GpuConfig",
    "JobContext",
    "JobFailedError",
    "JobId",
    "JobInfo",
    "JobNotFoundError",
    "JobRequest",
    "JobStatus",
    "LeaseExpiredError",
    "Lifetime",
    "NoReplyError",
    "ObjectRef",
    "ObjectStream",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "PluginNotFoundError",
    "QueueFullError",
    "QueueUnavailableError",
    "ResourceConfig",
    "RuntimeEnv",
    "SerializationError",
    "SpecError",
    "TaskCancelledError",
    "TaskError",
    "TaskOptions",
    "TpuConfig",
    "UnreadableItemError",
    "UnsupportedError",
    "WorkerDiedError",
    "WrongProcessError",
    "create_cluster",
    "create_context",
    "create_environment",
    "current_cluster",
    "get_job_context",
    "set_current_cluster",
    "set_job_ctx",
    "use_cluster",
    "use_context",
]


# What describes jobs is loaded when it is requested: no worker of a context needs it.
_HOMES = {
    **dict.fromkeys(("CpuConfig", "GpuConfig", "ResourceConfig", "TpuConfig"), "fray_resources"),
    **dict.fromkeys(("EnvironmentConfig", "create_environment"), "fray._values.environment"),
    **dict.fromkeys(("JobId", "JobInfo", "JobRequest", "JobStatus"), "fray._values.jobs"),
    "Cluster": "fray._contracts.cluster",
    "Entrypoint": "fray._values.entrypoint",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        return _legacy.find_name(__name__, name)
    value = getattr(import_module(home), name)
    globals()[name] = value  # the next look finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
