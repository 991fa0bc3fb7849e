"""Fray on this machine: tasks inline, in threads, in processes, and jobs as process trees."""

from importlib import import_module

TYPE_CHECKING = False  # importing typing would cost the supervisor of a job a third of its start
if TYPE_CHECKING:
    from typing import Any

    from fray_local._cluster.cluster import LocalCluster as LocalCluster
    from fray_local._cluster_config import LocalClusterConfig as LocalClusterConfig
    from fray_local._cluster_context import LocalClusterContext as LocalClusterContext
    from fray_local.contexts import SyncContext as SyncContext
    from fray_local.contexts import ThreadContext as ThreadContext

# Public name -> its module: a program that uses threads does not load what jobs need, nor the reverse.
_HOMES = {
    "LocalCluster": "_cluster.cluster",
    "LocalClusterConfig": "_cluster_config",
    "LocalClusterContext": "_cluster_context",
    "ProcessContext": "_process.context",
    "SyncContext": "contexts",
    "ThreadContext": "contexts",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fray_local.{_HOMES[name]}"), name)
