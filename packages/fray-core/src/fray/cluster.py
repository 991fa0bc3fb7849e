"""Jobs: what to run, with which resources, in which environment, on which cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fray import _plugins
from fray._cluster import Cluster, LogStream
from fray._cluster_context import ClusterContext
from fray._current import create_cluster, current_cluster, use_cluster
from fray._delays import poll_delays, retry_delays, retrying
from fray._entrypoint import Entrypoint
from fray._environment import EnvironmentConfig, create_environment
from fray._following import follow_logs, parent_job, wait_for_jobs
from fray._jobs import ExitReason, JobId, JobInfo, JobRequest, JobStatus, TaskStatus
from fray._last_lines import last_lines, redacted
from fray._observing_jobs import launching
from fray_resources import CpuConfig, DeviceConfig, GpuConfig, ResourceConfig, TpuConfig

if TYPE_CHECKING:
    from fray._cluster_base import ClusterBase
    from fray._cluster_calls import ClusterCalls
    from fray._directory_cluster import DirectoryCluster
    from fray._job_plans import JobPlan

__all__ = [
    "Cluster",
    "ClusterBase",
    "ClusterCalls",
    "ClusterContext",
    "CpuConfig",
    "DeviceConfig",
    "DirectoryCluster",
    "Entrypoint",
    "EnvironmentConfig",
    "ExitReason",
    "GpuConfig",
    "JobId",
    "JobInfo",
    "JobPlan",
    "JobRequest",
    "JobStatus",
    "LogStream",
    "ResourceConfig",
    "TaskStatus",
    "TpuConfig",
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
    "use_cluster",
    "wait_for_jobs",
]


# Loaded when asked for: only who writes a backend needs them.
_HOMES = {
    "ClusterBase": "_cluster_base",
    "ClusterCalls": "_cluster_calls",
    "DirectoryCluster": "_directory_cluster",
    "JobPlan": "_job_plans",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fray.{_HOMES[name]}"), name)
    return _plugins.public_name("cluster", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
