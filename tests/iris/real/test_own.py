"""What is Iris's own: its words, its jobs of other launchers, its refusals."""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
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
from fray.testing.cluster import until

PATIENCE = 300.0  # on a busy machine
pytestmark = pytest.mark.timeout(700)


def test_a_client_that_is_too_old_learns_so(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import iris.version

    monkeypatch.setattr(iris.version, "_CACHED", "2020-01-01")
    with pytest.raises(ClusterUnavailableError, match=r"built too long ago \(2020-01-01\)"):
        cluster.launch(JobRequest("old", print))


def test_a_controller_that_is_not_there_is_named(cluster: Any) -> None:
    with pytest.raises(ClusterUnavailableError, match=r"http://127\.0\.0\.1:9 cannot be asked"):
        create_cluster("iris?controller=http://127.0.0.1:9", user="ada").poll("job-1")
    (finding,) = cluster.diagnose()
    assert "workers are healthy" in finding.found


class LateLogServer(BaseHTTPRequestHandler):
    """Answers as a controller whose log server is late once, and then has nothing to say."""

    asked = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        LateLogServer.asked += 1
        late = LateLogServer.asked == 1
        answer = b'{"code": "deadline_exceeded", "message": "Request timed out"}' if late else b""
        self.send_response(504 if late else 200)
        self.send_header("Content-Type", "application/json" if late else "application/proto")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        return


def test_a_log_server_that_is_late_is_asked_again() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), LateLogServer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        cluster: Any = create_cluster(f"iris?controller=http://127.0.0.1:{server.server_port}", user="ada")
        try:
            assert cluster.iris.log("/ada/job-1/0:0", 0) == ([], 0)
            assert LateLogServer.asked == 2
        finally:
            cluster.iris.close()
            server.shutdown()
            thread.join()


def test_a_job_runs_where_it_is_asked_to(cluster: Any) -> None:
    def request(*regions: str) -> JobRequest:
        return JobRequest("there", Entrypoint.from_binary("true"), resources=ResourceConfig(regions=regions))

    info = cluster.wait(cluster.launch(request("nowhere", "here")), timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    (task,) = cluster.iris.tasks(cluster.iris_name(info.job_id))
    assert "-cpus-" in task["worker_id"]  # the group of workers that has this region
    with pytest.raises(UnsupportedError, match="could ever run this"):
        cluster.launch(request("nowhere"))


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


def test_what_variables_say_is_in_no_answer_of_iris(cluster: Any) -> None:
    variables = {"WORD": "abracadabra", "LONG": "x\n" * 20_000}
    code = "import os; print(os.environ['WORD'][::-1], len(os.environ['LONG']))"
    program = Entrypoint.from_binary("python", ["-c", code])
    request = JobRequest("variables", program, environment=create_environment(env_vars=variables))
    job_id = cluster.launch(request)
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id)) == ["arbadacarba 40000"]
    name = cluster.iris_name(job_id)
    answers = [cluster.iris.status(name), cluster.iris.tasks(name, whole=True), cluster.iris.jobs(name)]
    assert "abracadabra" not in repr(answers)


def fray(spec: str, *words: str) -> str:
    """Run the command `fray`; return what it printed."""
    environment = os.environ | {"FRAY_CLUSTER_SPEC": spec}
    command = [str(Path(sys.executable).with_name("fray")), *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


INSIDE = """
import json, os, subprocess, time

def fray(*words):
    done = subprocess.run(["fray", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout

program = ["sh", "-c", "echo from the child; sleep 600"]
child = json.loads(fray("run", "--name", "child", "--detach", "--json", "--", *program))["job_id"]
while "from the child" not in fray("logs", "--no-follow", child):
    time.sleep(0.2)
listed = json.loads(fray("list", "--parent", os.environ["FRAY_JOB_ID"], "--json"))
print("listed", [row["job_id"] for row in listed] == [child])
print(json.loads(fray("status", child, "--json"))["status"])
fray("stop", "--grace", "1", child)
print(json.loads(fray("status", child, "--json"))["status"])
"""


def test_the_commands_work_outside_of_iris_and_in_its_tasks(cluster: Any) -> None:
    spec = str(cluster.spec)
    launched = fray(spec, "run", "--name", "outer", "--detach", "--json", "--", "python", "-c", INSIDE)
    job_id = json.loads(launched)["job_id"]
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert fray(spec, "logs", job_id).splitlines() == ["listed True", "running", "stopped"]
    (child,) = info.children
    assert child.startswith(f"{job_id}/child-")
    assert job_id in [row["job_id"] for row in json.loads(fray(spec, "list", "--json"))]
    assert json.loads(fray(spec, "status", child, "--json"))["status"] == "stopped"
    fray(spec, "stop", job_id)  # it has ended: nothing changes
    assert cluster.poll(job_id).status is JobStatus.SUCCEEDED


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
    # Nothing says which line of it is the last, so that a look may come before its lines.
    until(lambda: list(cluster.monitor("native-job")) == ["from iris"], "its line is there", PATIENCE)
    assert "native-job" in [each.job_id for each in cluster.list_jobs()]
