"""Write distributed code once; choose where it runs when you run it."""

from typing import Any

from fray._contexts.base import ContextBase
from fray._contracts.cluster import Cluster
from fray._contracts.context import ActorHandle, JobContext, ObjectRef, ObjectStream
from fray._discovery import plugins as _plugins
from fray._discovery.current import (
    create_cluster,
    create_context,
    current_cluster,
    get_job_context,
    use_cluster,
    use_context,
)
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig, create_environment
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
    PluginConflictError,
    PluginError,
    PluginLoadError,
    PluginNotFoundError,
    QueueUnavailableError,
    SerializationError,
    SpecError,
    TaskCancelledError,
    TaskError,
    UnsupportedError,
    WorkerDiedError,
    WrongProcessError,
)
from fray._values.jobs import JobId, JobInfo, JobRequest, JobStatus
from fray._values.options import ActorOptions, Lifetime, RuntimeEnv, TaskOptions
from fray_resources import CpuConfig, GpuConfig, ResourceConfig, TpuConfig

__version__ = "0.1.0"

ExecutionContext = JobContext
fray_job_ctx = get_job_context

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
    "ObjectRef",
    "ObjectStream",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "PluginNotFoundError",
    "QueueUnavailableError",
    "ResourceConfig",
    "RuntimeEnv",
    "SerializationError",
    "SpecError",
    "TaskCancelledError",
    "TaskError",
    "TaskOptions",
    "TpuConfig",
    "UnsupportedError",
    "WorkerDiedError",
    "WrongProcessError",
    "create_cluster",
    "create_context",
    "create_environment",
    "current_cluster",
    "fray_job_ctx",
    "get_job_context",
    "use_cluster",
    "use_context",
]


def __getattr__(name: str) -> Any:
    return _plugins.public_name("", name)
