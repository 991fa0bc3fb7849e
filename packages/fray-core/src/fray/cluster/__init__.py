"""Jobs: what to run, with which resources, in which environment, on which cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fray import _legacy
from fray._contracts.cluster import Cluster, LogStream
from fray._discovery.current import create_cluster, current_cluster, set_current_cluster, use_cluster
from fray._jobs.clusters.context import ClusterContext
from fray._jobs.clusters.following import parent_job, wait_for_jobs
from fray._jobs.clusters.log_stream import follow_logs
from fray._jobs.logs.last_lines import last_lines
from fray._jobs.logs.redaction import redacted
from fray._telemetry.job_instrumentation import launching
from fray._values.delays import poll_delays, retry_delays, retrying
from fray._values.endpoints import Endpoint
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig, create_environment
from fray._values.job_states import LastSeen
from fray._values.jobs import (
    ExitReason,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    Pruned,
    SweepId,
    TaskStatus,
)
from fray._values.usage import UsageSample
from fray_resources import CpuConfig, DeviceConfig, GpuConfig, ResourceConfig, TpuConfig

if TYPE_CHECKING:
    from fray._jobs.clusters.base import ClusterBase
    from fray._jobs.clusters.calls import ClusterCalls
    from fray._jobs.clusters.directory_cluster import DirectoryCluster
    from fray._jobs.plans.plan import JobPlan

__all__ = [
    "Cluster",
    "ClusterBase",
    "ClusterCalls",
    "ClusterContext",
    "CpuConfig",
    "DeviceConfig",
    "DirectoryCluster",
    "Endpoint",
    "Entrypoint",
    "EnvironmentConfig",
    "ExitReason",
    "GpuConfig",
    "JobId",
    "JobInfo",
    "JobPlan",
    "JobRequest",
    "JobStatus",
    "LastSeen",
    "LogStream",
    "Pruned",
    "ResourceConfig",
    "SweepId",
    "TaskStatus",
    "TpuConfig",
    "UsageSample",
    "create_cluster",
    "create_environment",
    "current_cluster",
    "follow_logs",
    "last_lines",
    "launching",
    "parent_job",
    "poll_delays",
    "redacted",
    "retry_delays",
    "retrying",
    "set_current_cluster",
    "use_cluster",
    "wait_for_jobs",
]


# Loaded when requested: only authors of backends need them.
_HOMES = {
    "ClusterBase": "_jobs.clusters.base",
    "ClusterCalls": "_jobs.clusters.calls",
    "DirectoryCluster": "_jobs.clusters.directory_cluster",
    "JobPlan": "_jobs.plans.plan",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fray.{_HOMES[name]}"), name)
    return _legacy.find_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
