"""Fray on Ray: tasks and actors on a cluster, and jobs in Ray's own job table."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray_ray._context.context import RayContext as RayContext
    from fray_ray._launcher.cluster import RayCluster as RayCluster
    from fray_ray._launcher.cluster_context import RayClusterContext as RayClusterContext
    from fray_ray._placement import current_placement_group as current_placement_group
    from fray_ray._placement import resources_in_current_group as resources_in_current_group
    from fray_ray._run_on_pod import run_on_pod as run_on_pod

# Public name -> its module: importing this package does not import Ray, which takes most of a second.
_HOMES = {
    "RayCluster": "_launcher.cluster",
    "RayClusterContext": "_launcher.cluster_context",
    "RayContext": "_context.context",
    "current_placement_group": "_placement",
    "resources_in_current_group": "_placement",
    "run_on_pod": "_run_on_pod",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fray_ray.{_HOMES[name]}"), name)
