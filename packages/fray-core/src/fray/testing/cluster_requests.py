"""What a request says of a job, beside what it runs: its name."""

from fray._contracts.cluster import Cluster
from fray._values.jobs import JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program


class RequestContract(ClusterFixtures):
    """What is asked of a job is done, shown, or refused at launch."""

    def test_a_name_is_any_printable_text(self, cluster: Cluster) -> None:
        name = "executor:tokenized/fineweb, 2nd (日本)"
        job_id = launch(cluster, program("print('ran')"), name)
        assert job_id.startswith("executor-tokenized-fineweb-2nd")
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        assert (info.name, info.status) == (name, JobStatus.SUCCEEDED)
        assert "ran" in list(cluster.monitor(job_id))
        assert name in [each.name for each in cluster.list_jobs()]
