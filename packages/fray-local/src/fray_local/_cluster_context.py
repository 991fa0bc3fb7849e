"""The older face on the jobs of this machine."""

from fray.cluster import ClusterContext
from fray_local._cluster.cluster import LocalCluster


class LocalClusterContext(ClusterContext):
    """`create_job`, `list_jobs` and `delete_job` on a `LocalCluster`."""

    def __init__(self) -> None:
        super().__init__(LocalCluster())
