"""The older face on jobs on Ray."""

from fray.cluster import ClusterContext
from fray_ray._launcher.cluster import RayCluster


class RayClusterContext(ClusterContext):
    """`create_job`, `list_jobs` and `delete_job` on a `RayCluster`.

    Args:
        address: The cluster's head, as `RayCluster` takes it.
        dashboard_address: The URL of its dashboard, where that is not found by the address.
    """

    def __init__(self, address: str | None = None, dashboard_address: str | None = None) -> None:
        super().__init__(RayCluster(address, dashboard_address=dashboard_address))
