"""How clusters are found, what a token opens, and what is said when the head is lost."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_dashboard import FakeDashboard, fake_dashboard
from words_in_files import command_lines_with, files_with

from fray import ClusterUnavailableError, FrayError, JobRequest, JobStatus, UnsupportedError, create_context
from fray.cluster import Entrypoint, create_environment
from fray_ray import RayCluster

pytestmark = pytest.mark.timeout(480)
TOKEN = "0123456789abcdef-never-to-be-seen"  # not secret: of a cluster that lives for this file
SERVER = """
    import json, os, sys
    from fray_ray.testing import LocalRayCluster

    with LocalRayCluster(num_cpus=4, fast_workers=False) as cluster:  # as Ray starts them elsewhere
        told = dict(head=cluster.address, url=cluster.dashboard)
        print(json.dumps({**told, "folder": os.environ["RAY_TMPDIR"]}), flush=True)
        for line in sys.stdin:
            cluster.kill_node(cluster.node_ids()[0])
            print("killed", flush=True)
"""


# How long a busy machine may take to start a node: see conftest.
PATIENCE = {
    "RAY_raylet_start_wait_time_s",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT",
}


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name in PATIENCE
    }
    return {**kept, **changes}


def program(code: str, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own: Ray reads once, at its import, whether there are tokens."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def server() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER)],
        env=environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


@pytest.fixture(scope="module")
def protected(server: "subprocess.Popen[str]") -> dict[str, str]:
    """A cluster that asks for a token: its address in every form."""
    assert server.stdout is not None
    told: dict[str, str] = json.loads(server.stdout.readline())
    return told


def test_every_form_of_an_address_reaches_the_cluster_and_its_token_the_jobs(
    protected: dict[str, str],
) -> None:
    done = program(
        """
        import sys
        from fray.cluster import Entrypoint, JobRequest, RayCluster

        def work():
            from fray import Entrypoint, JobRequest, current_cluster, get_job_context

            context, cluster = get_job_context(), current_cluster()
            print("task", context.get(context.run(pow, 2, 5)))
            below = cluster.launch(JobRequest("below", Entrypoint.from_binary("echo", ["below"])))
            print("job", cluster.wait(below, raise_on_failure=True).status)

        head, url = map(RayCluster, sys.argv[1:])
        job_id = head.launch(JobRequest("above", Entrypoint.from_callable(work)))
        print(*url.monitor(job_id), sep="; ")
        print(url.wait(job_id, raise_on_failure=True).status)
        """,
        *(protected[form] for form in ("head", "url")),
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=TOKEN,
    )
    assert done.stdout.splitlines()[-2:] == ["task 32; job succeeded", "succeeded"], done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_the_token_is_in_no_log_and_no_command_line(protected: dict[str, str]) -> None:
    folder = Path(protected["folder"])
    assert any("job-driver" in path.name for path in files_with(["task 32"], folder))
    assert not files_with([TOKEN], folder)
    assert not command_lines_with(TOKEN)


@pytest.mark.parametrize("form", ["head", "url"])
@pytest.mark.parametrize("token", [None, "wrong" * 8], ids=["none", "wrong"])
def test_without_its_token_a_cluster_is_unavailable_and_the_error_says_what_to_set(
    protected: dict[str, str], form: str, token: str | None
) -> None:
    mode = (
        {"RAY_AUTH_MODE": "disabled"}
        if token is None
        else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    )
    done = program(
        """
        import sys
        from fray import ClusterUnavailableError
        from fray.cluster import RayCluster
        try:
            RayCluster(sys.argv[1])
        except ClusterUnavailableError as error:
            print(error)
        """,
        protected[form],
        **mode,
    )
    assert "RAY_AUTH_TOKEN" in done.stdout, done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_a_lost_head_is_an_error_on_every_call_and_no_hang(
    protected: dict[str, str], server: "subprocess.Popen[str]"
) -> None:
    code = """
        import sys, time
        from fray import ClusterUnavailableError
        from fray.cluster import Entrypoint, JobRequest, RayCluster

        cluster = RayCluster(sys.argv[1], reconnect_timeout=0.5)
        request = JobRequest("last", Entrypoint.from_binary("sleep", ["600"]))
        job_id = cluster.launch(request)
        lines = cluster.monitor(job_id)
        print(job_id, flush=True)
        sys.stdin.readline()
        calls = dict(
            launch=lambda: cluster.launch(request),
            poll=lambda: cluster.poll(job_id),
            wait=lambda: cluster.wait(job_id),
            monitor=lambda: cluster.monitor(job_id),
            follow=lambda: list(lines),
            terminate=lambda: cluster.terminate(job_id),
            list_jobs=cluster.list_jobs,
            head=lambda: RayCluster(sys.argv[2]),
        )
        for name, call in calls.items():
            start = time.monotonic()
            try:
                call()
            except ClusterUnavailableError as error:
                assert "no Ray cluster answers at" in str(error)
                print(name, "is lost", time.monotonic() - start < 30)
    """
    words = [protected[form] for form in ("url", "head")]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        env=environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline().startswith("last-")
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("kill\n")
        server.stdin.flush()
        assert server.stdout.readline() == "killed\n"
        out, err = client.communicate("go\n")
    names = ["launch", "poll", "wait", "monitor", "follow", "terminate", "list_jobs", "head"]
    assert out.splitlines() == [f"{name} is lost True" for name in names], err


def test_an_address_where_nothing_listens_is_named() -> None:
    for address in ("http://127.0.0.1:9", "127.0.0.1:9"):
        with pytest.raises(ConnectionError, match=f"no Ray cluster answers at '{address}'") as caught:
            RayCluster(address)
        assert isinstance(caught.value, FrayError)


def test_a_head_that_hangs_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterUnavailableError, match="timed out"):
            RayCluster(address, answer_timeout=0.2)


def test_a_ray_that_does_not_come_up_is_a_cluster_that_is_not_there() -> None:
    code = """
        import ray
        from fray import ClusterUnavailableError, create_context

        def init(*_, **__):  # what it raises after 30 s on a machine that is too busy
            raise Exception("The current node timed out during startup.")

        ray.init = init
        with create_context("ray?local=true") as context:
            try:
                context.put(1)
            except ClusterUnavailableError as error:
                print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout == (
        "no Ray could be started on this machine: The current node timed out during startup.\n"
    )


def test_ray_client_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(UnsupportedError, match="fray run"):
        create_context("ray?address=ray://127.0.0.1:10001")
    with pytest.raises(UnsupportedError, match=r"http://HOST:8265"):
        RayCluster("ray://127.0.0.1:10001")


@pytest.fixture
def starting() -> Iterator[FakeDashboard]:
    """One whose cluster has no agent for jobs until it was asked three times."""
    with fake_dashboard() as dashboard:
        dashboard.agent_after = 3
        yield dashboard


def test_a_cluster_that_starts_is_given_time_to_have_an_agent(starting: FakeDashboard) -> None:
    RayCluster(starting.url).launch(JobRequest("early", Entrypoint.from_binary("true")))
    assert (starting.refused, len(starting.submitted)) == (2, 1)


HALF_KNOWN = [  # what a dashboard says of a node that joined, or left, a moment ago
    {"data": {"summary": [{"raylet": {"state": "ALIVE"}}]}},
    {"data": {"summary": [{"ip": "127.0.0.1"}, {"ip": None, "raylet": {}}]}},
    {"data": {"summary": [{"ip": "127.0.0.1", "raylet": None}, None, "node"]}},
    {"data": {"summary": None}},
    {"result": False},
    [],
]


@pytest.mark.parametrize("nodes", HALF_KNOWN, ids=json.dumps)
def test_a_job_is_launched_whatever_the_dashboard_says_of_its_nodes(nodes: Any) -> None:
    with fake_dashboard() as dashboard:
        dashboard.nodes = nodes
        cluster = RayCluster(dashboard.url, reconnect_timeout=0.1)
        cluster.launch(JobRequest("early", Entrypoint.from_binary("true")))
        assert len(dashboard.submitted) == 1


def test_a_workspace_is_shipped_to_a_cluster_whose_dashboard_knows_no_node_at_first(tmp_path: Path) -> None:
    elsewhere = {"ip": "203.0.113.5", "raylet": {"state": "ALIVE"}}
    environment = create_environment(workspace=tmp_path)
    with fake_dashboard() as dashboard:
        dashboard.nodes = {"data": {"summary": [elsewhere]}}
        dashboard.nodes_at_first = [{"data": {"summary": []}}] * 2
        request = JobRequest("early", Entrypoint.from_binary("true"), environment=environment)
        RayCluster(dashboard.url).launch(request)
        (job,) = dashboard.queued.values()
    assert job["runtime_env"]["working_dir"].startswith("gcs://")


OWN = {"fray.job_id": "train-1", "fray.name": "train", "fray.replicas": "1"}
DAMAGED: list[dict[str, str]] = [
    {"fray.job_id": "train-1"},
    {**OWN, "fray.replicas": "many"},
    {**OWN, "fray.info": "{"},
    {**OWN, "fray.info": "[]"},
    {**OWN, "fray.info": json.dumps({"status": "dancing", "tasks": []})},
]


@pytest.mark.parametrize("metadata", DAMAGED, ids=json.dumps)
def test_an_entry_of_the_job_table_that_makes_no_sense_is_one_bad_row(metadata: dict[str, str]) -> None:
    with fake_dashboard() as dashboard:
        dashboard.add("train-1", "PENDING", OWN)
        dashboard.add("train-2", "SUCCEEDED", {**metadata, "fray.job_id": "train-2"})
        found = RayCluster(dashboard.url).list_jobs()
    good, bad = sorted(found, key=lambda info: info.error_message is not None)
    assert (good.name, good.status) == ("train", JobStatus.PENDING)
    assert bad.status is JobStatus.SUCCEEDED
    assert "cannot be read" in str(bad.error_message)


def test_a_cluster_that_never_has_an_agent_is_explained(starting: FakeDashboard) -> None:
    starting.agent_after = 10**9
    cluster = RayCluster(starting.url, agent_timeout=0.5)
    with pytest.raises(ClusterUnavailableError, match=r"no agent to run jobs within 0\.5 s.*ray\[default\]"):
        cluster.launch(JobRequest("never", Entrypoint.from_binary("true")))


def test_a_job_that_is_refused_leaves_no_secret_in_the_head(starting: FakeDashboard) -> None:
    cluster = RayCluster(starting.url, scheduler_timeout=0.5)
    environment = create_environment(env_vars={"TOKEN": TOKEN})
    request = JobRequest("refused", Entrypoint.from_binary("true"), environment=environment)
    starting.agent_after = 1
    cluster.launch(request)
    assert any(TOKEN.encode() in data for data in starting.stored.values())  # the plan of one that runs
    starting.stored.clear()
    starting.takes_jobs = False
    with pytest.raises(ClusterUnavailableError, match=r"did not take job .* within 0\.5 s"):
        cluster.launch(request)
    assert set(starting.stored.values()) == {b"-", b"0.0"}, "all is withdrawn, and it is to end"
    assert not any(TOKEN.encode() in data for data in starting.stored.values())


def test_a_callable_for_another_python_is_refused_with_both_versions(starting: FakeDashboard) -> None:
    cluster, here = RayCluster(starting.url), f"{sys.version_info.major}.{sys.version_info.minor}"
    request = JobRequest("callable", Entrypoint.from_callable(print))
    starting.agent_after, starting.python = 1, "3.99.1"
    refused = rf"Python {here}, and would run on Python 3\.99"
    with pytest.raises(ValueError, match=refused):
        cluster.launch(request)
    with pytest.raises(ValueError, match=refused):
        cluster.launch_many([request])
    assert not starting.stored
    cluster.launch(JobRequest("command", Entrypoint.from_binary("true")))
    starting.python = f"{here}.99"
    cluster.launch(request)
