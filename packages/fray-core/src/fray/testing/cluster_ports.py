"""Ports of replicas, and servers that are found by name."""

import os
import signal
import textwrap
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from fray._contracts.cluster import Cluster
from fray._jobs.replica.endpoints import register_endpoint
from fray._values.capabilities import ClusterCapabilities
from fray._values.endpoints import Endpoint
from fray._values.errors import FrayError
from fray._values.jobs import JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, numbers_in, program, until
from fray_resources import ResourceConfig

SMALL = ResourceConfig(cpu=0.5, ram="256m")
# Says on which ports it listens, and runs until a file is there.
LISTEN = """
    import os, pathlib, socket, sys, time
    names = ("FRAY_PORT_HTTP", "FRAY_PORT_SIDE_CAR")
    sockets = [socket.create_server(("", int(os.environ[name]))) for name in names]
    for each in sockets:
        print(each.getsockname()[1], file=open(sys.argv[1], "a"))
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
"""
# A server of HTTP that answers with its attempt, by the name of argv[1]; argv[2] gets its process id.
SERVE = """
    import http.server, os, sys
    from fray.job import register_endpoint

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(os.environ["FRAY_ATTEMPT"].encode())

    server = http.server.HTTPServer(("", int(os.environ["FRAY_PORT_HTTP"])), Answer)
    register_endpoint(sys.argv[1], metadata={"model": "tiny", "replica": int(os.environ["FRAY_REPLICA_ID"])})
    print(os.getpid(), file=open(sys.argv[2], "a", 1))
    server.serve_forever()
"""


class PortContract(ClusterFixtures):
    """`ports=`: each replica has a free port of its own for each name"""

    def test_replicas_and_jobs_have_ports_of_their_own(self, cluster: Cluster, tmp_path: Path) -> None:
        found, go = tmp_path / "ports", tmp_path / "go"
        ports = ("http", "side-car")
        if not getattr(cluster, "capabilities", ClusterCapabilities()).ports:
            with self.refuses("ports"):
                launch(cluster, program(LISTEN, found, go), ports=ports)
            return
        two = ResourceConfig(cpu=0.5, ram="256m", replicas=2)
        jobs = [launch(cluster, program(LISTEN, found, go), ports=ports, resources=two) for _ in range(2)]
        until(lambda: len(numbers_in(found)) == 8, "all listen", self.PATIENCE)
        assert len(set(numbers_in(found))) == 8

        def given() -> list[dict[str, int]]:
            return [dict(task.ports) for job_id in jobs for task in cluster.poll(job_id).tasks]

        until(lambda: [set(each) for each in given()] == [set(ports)] * 4, "all are known", self.PATIENCE)
        assert sorted(port for each in given() for port in each.values()) == sorted(numbers_in(found))
        go.touch()
        assert {info.status for info in cluster.wait(jobs, timeout=self.PATIENCE)} == {JobStatus.SUCCEEDED}


class EndpointContract(ClusterFixtures):
    """`register_endpoint`: a server is found by name, for as long as its attempt runs"""

    def has_endpoints(self, cluster: Cluster) -> bool:
        """Whether servers are found by name, and have ports."""
        declared = getattr(cluster, "capabilities", ClusterCapabilities())
        if declared.endpoints and declared.ports:
            return True
        self.moot("capabilities.endpoints")
        return False

    def found(self, cluster: Cluster, prefix: str, count: int = 1) -> list[Endpoint]:
        """Wait until there are so many endpoints, and return them."""
        until(lambda: len(cluster.endpoints(prefix)) == count, f"{prefix} is found", self.PATIENCE)
        return cluster.endpoints(prefix)

    def test_a_server_is_found_by_name_until_it_ends(
        self, cluster: Cluster, elsewhere: Callable[..., str], tmp_path: Path
    ) -> None:
        if not getattr(cluster, "capabilities", ClusterCapabilities()).endpoints:
            with self.refuses("endpoints"):
                cluster.endpoints("contract/")
            return
        if not self.has_endpoints(cluster):
            return
        server = launch(
            cluster, program(SERVE, "contract/a", tmp_path / "pids"), ports=["http"], resources=SMALL
        )
        (endpoint,) = self.found(cluster, "contract/")
        assert (endpoint.name, endpoint.job_id) == ("contract/a", server)
        assert (endpoint.replica, endpoint.attempt) == (0, 1)
        assert endpoint.metadata == {"model": "tiny", "replica": 0}
        assert _answer(endpoint) == "1"
        assert cluster.endpoints("contract/b") == []
        code = "print(cluster.endpoints(sys.argv[1])[0].address)"
        assert elsewhere(code, "contract/").strip() == endpoint.address
        cluster.terminate(server, grace=0.0)
        assert cluster.endpoints("contract/") == []

    def test_a_server_that_is_started_again_is_found_again(self, cluster: Cluster, tmp_path: Path) -> None:
        if not self.has_endpoints(cluster):
            return
        pids = tmp_path / "pids"
        server = program(SERVE, "contract/again", pids)
        launch(cluster, server, ports=["http"], max_retries_failure=1, resources=SMALL)
        (first,) = self.found(cluster, "contract/again")
        until(lambda: numbers_in(pids), "it serves", self.PATIENCE)
        os.kill(numbers_in(pids)[0], signal.SIGKILL)
        until(lambda: first not in cluster.endpoints("contract/again"), "the first one ends", self.PATIENCE)
        (second,) = self.found(cluster, "contract/again")
        assert second.attempt == 2
        assert _answer(second) == "2"

    def test_replicas_of_one_name_are_all_found(self, cluster: Cluster, tmp_path: Path) -> None:
        if not self.has_endpoints(cluster):
            return
        two = ResourceConfig(cpu=0.5, ram="256m", replicas=2)
        launch(cluster, program(SERVE, "contract/pool", tmp_path / "pids"), ports=["http"], resources=two)
        endpoints = self.found(cluster, "contract/pool", 2)
        assert sorted(each.replica for each in endpoints) == [0, 1]
        assert len({each.address for each in endpoints}) == 2

    def test_a_job_finds_the_servers_of_its_family_alone(
        self, cluster: Cluster, elsewhere: Callable[..., str], tmp_path: Path
    ) -> None:
        if not self.has_endpoints(cluster):
            return
        pids = tmp_path / "pids"
        launch(cluster, program(SERVE, "contract/own", pids), ports=["http"], resources=SMALL)
        code = """
            command = Entrypoint.from_binary("python", ["-c", sys.argv[1], "contract/others", sys.argv[2]])
            small = ResourceConfig(cpu=0.5, ram="256m")
            print(cluster.launch(JobRequest("stranger", command, ports=["http"], resources=small)))
        """
        elsewhere(code, textwrap.dedent(SERVE), str(pids))
        self.found(cluster, "contract/", 2)
        client = """
            from fray.cluster import current_cluster
            cluster = current_cluster()
            print([each.name for each in cluster.endpoints("contract/")])
            print(sorted(each.name for each in cluster.endpoints("contract/", everywhere=True)))
        """
        job_id = launch(cluster, program(client), resources=SMALL)
        assert list(cluster.monitor(job_id)) == ["['contract/own']", "['contract/others', 'contract/own']"]

    def test_a_program_that_is_not_a_replica_registers_nothing(self, cluster: Cluster) -> None:
        if not self.has_endpoints(cluster):
            return
        with pytest.raises(FrayError, match="not a replica of a job"):
            register_endpoint("contract/nowhere", "127.0.0.1:1")
        with pytest.raises(ValueError, match="name must be"):
            register_endpoint("")


def _answer(endpoint: Endpoint) -> str:
    with urllib.request.urlopen(f"http://{endpoint.address}/", timeout=10) as answer:
        text: str = answer.read().decode()
    return text
