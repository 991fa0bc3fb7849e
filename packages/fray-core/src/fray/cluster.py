"""Jobs: what to run, with which resources, in which environment, on which cluster."""

from typing import Any

from fray import _plugins
from fray._cluster import Cluster, LogStream
from fray._cluster_context import ClusterContext
from fray._current import create_cluster, current_cluster, use_cluster
from fray._delays import poll_delays, retry_delays, retrying
from fray._entrypoint import Entrypoint
from fray._environment import EnvironmentConfig, create_environment
from fray._following import follow_logs, parent_job, wait_for_jobs
from fray._jobs import ExitReason, JobId, JobInfo, JobRequest, JobStatus, TaskStatus
from fray._observing_jobs import launching
from fray_resources import CpuConfig, DeviceConfig, GpuConfig, ResourceConfig, TpuConfig

__all__ = [
    "Cluster",
    "ClusterContext",
    "CpuConfig",
    "DeviceConfig",
    "Entrypoint",
    "EnvironmentConfig",
    "ExitReason",
    "GpuConfig",
    "JobId",
    "JobInfo",
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
    "launching",
    "parent_job",
    "poll_delays",
    "retry_delays",
    "retrying",
    "use_cluster",
    "wait_for_jobs",
]


def __getattr__(name: str) -> Any:
    return _plugins.public_name("cluster", name)
