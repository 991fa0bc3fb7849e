"""A client that is no node of the cluster: it reaches the dashboard's port, and nothing else."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from fray_ray.testing import LocalRayCluster

CODE = """
    import sys

    connections = []
    sys.addaudithook(lambda event, words: connections.append(words[1]) if event == "socket.connect" else None)

    from fray.cluster import Entrypoint, JobRequest, create_cluster, create_environment

    def work(number):
        import os
        import time

        print("has", number, os.environ["PLAIN"], flush=True)
        if number == 2:
            time.sleep(600)

    port, workspace = int(sys.argv[1]), sys.argv[2]
    cluster = create_cluster(f"ray?address=http://127.0.0.1:{port}&ship_workspace=true")
    environment = create_environment(workspace=workspace, env_vars={"PLAIN": "value"})

    def launch(number):
        entrypoint = Entrypoint.from_callable(work, [number])
        return cluster.launch(JobRequest(f"job-{number}", entrypoint, environment=environment))

    ended, stopped = launch(1), launch(2)
    assert cluster.wait(ended, timeout=240).status == "succeeded"
    assert list(cluster.monitor(ended)) == ["has 1 value"]
    lines = cluster.monitor(stopped)
    assert next(lines) == "has 2 value"
    cluster.terminate(stopped, grace=1.0)
    assert cluster.poll(stopped).status == "stopped"
    assert {ended, stopped} <= {info.job_id for info in cluster.list_jobs()}
    assert cluster.usage(ended) is not None
    cluster.remove(ended)
    beyond = {address for address in connections if address[:2] != ("127.0.0.1", port)}
    assert not beyond, beyond
    print("all by one port")
"""


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the other direction has closed it
        return


@pytest.fixture
def forwarded(ray_cluster: LocalRayCluster) -> Iterator[int]:
    """The port of a forwarder to the dashboard, as `ssh -L` or a load balancer makes one."""
    host, _, port = ray_cluster.dashboard.removeprefix("http://").rpartition(":")
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # it is over
                return
            server = socket.create_connection((host, int(port)))
            opened.extend((client, server))
            for ends in ((client, server), (server, client)):
                threads.append(threading.Thread(target=pump, args=ends))
                threads[-1].start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        acceptor = threading.Thread(target=serve, args=(listener,))
        acceptor.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    acceptor.join()
    for each in opened:  # a socket that is closed alone does not wake who reads from it
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for each in opened:
        each.close()


def test_a_client_outside_of_the_cluster_needs_one_port(forwarded: int, tmp_path: Path) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    workspace.mkdir()
    elsewhere.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    client = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CODE), str(forwarded), str(workspace)],
        env={**environ, "RAY_TMPDIR": str(elsewhere)},
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )
    assert client.stdout.endswith("all by one port\n"), client.stderr
    assert not list(elsewhere.iterdir()), "the client started nothing of Ray"
