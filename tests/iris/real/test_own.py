"""What is Iris's own: its words, its jobs of other launchers, its refusals."""

from pathlib import Path
from typing import Any

import pytest

from fray import ClusterUnavailableError, UnsupportedError
from fray.cluster import (
    Entrypoint,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
    create_environment,
)

PATIENCE = 100.0


@pytest.fixture
def cluster(address: str) -> Any:
    return create_cluster(f"iris?controller={address}&shared_files=true")


def test_a_client_that_is_too_old_is_told_so(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import iris.version

    monkeypatch.setattr(iris.version, "_CACHED", "2020-01-01")
    with pytest.raises(ClusterUnavailableError, match=r"built too long ago \(2020-01-01\)"):
        cluster.launch(JobRequest("old", print))


def test_a_controller_that_is_not_there_is_named(cluster: Any) -> None:
    with pytest.raises(ClusterUnavailableError, match=r"http://127\.0\.0\.1:9 cannot be asked"):
        create_cluster("iris?controller=http://127.0.0.1:9", user="ada").poll("job-1")
    (finding,) = cluster.diagnose()
    assert "workers are healthy" in finding.found


def test_what_no_worker_could_run_is_refused_at_launch(cluster: Any) -> None:
    request = JobRequest("big", print, resources=ResourceConfig.with_tpu("v6e-256"))
    with pytest.raises(UnsupportedError, match="could ever run this"):
        cluster.launch(request)


def test_where_files_are_not_shared_a_job_runs_a_copy_of_its_workspace(address: str, tmp_path: Path) -> None:
    cluster = create_cluster(f"iris?controller={address}")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "step.py").write_text("VALUE = 'from the copy'")
    (tmp_path / "main.py").write_text("import os, package.step; print(package.step.VALUE, os.getcwd())")
    environment = create_environment(workspace=tmp_path)
    job_id = cluster.launch(
        JobRequest("copied", Entrypoint.from_binary("python", ["main.py"]), environment=environment)
    )
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    (line,) = cluster.monitor(job_id)
    assert line.startswith("from the copy ")
    assert str(tmp_path) not in line


def test_native_options_reach_iris_and_resources_come_back(cluster: Any) -> None:
    resources = ResourceConfig(cpu=0.5, ram="256m", disk="1g", preemptible=True)
    request = JobRequest(
        "native",
        Entrypoint.from_binary("true"),
        resources=resources,
        backend={"iris": {"priority_band": "batch"}},
    )
    job_id = cluster.launch(request)
    _, asked = cluster.iris.status(cluster.iris_name(job_id))
    assert asked["priority_band"] == "PRIORITY_BAND_BATCH"
    assert cluster.wait(job_id, timeout=PATIENCE).resources == resources


def test_jobs_that_others_launched_are_read_too(cluster: Any, address: str) -> None:
    from iris.client import IrisClient
    from iris.cluster.types import Entrypoint as IrisEntrypoint
    from iris.cluster.types import ResourceSpec

    with IrisClient.remote(address) as client:
        client.submit(
            IrisEntrypoint.from_command("sh", "-c", "echo from iris; exit 4"),
            name="native-job",
            resources=ResourceSpec(cpu=1, memory="256m"),
        )
    info = cluster.wait("native-job", timeout=PATIENCE)
    assert (info.status, info.name, info.exit_code) == (JobStatus.FAILED, "native-job", 4)
    assert list(cluster.monitor("native-job")) == ["from iris"]
    assert "native-job" in [each.job_id for each in cluster.list_jobs()]
