"""What fray-ray uses beyond Ray's public API does in this Ray what it did in the one it was read in."""

import asyncio
import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import ray as typed_ray
import requests
from ray._common.usage import usage_lib
from ray._private import serialization
from ray._private.runtime_env.utils import SubprocessCalledProcessError
from ray._private.worker import global_worker
from ray.core.generated import common_pb2
from ray.exceptions import RayTaskError
from ray.job_submission import JobStatus, JobSubmissionClient

from fray.backend import HeldPorts, process_tree
from fray.testing.cluster import until
from fray_ray._ray_internals import direct_calls
from fray_ray._ray_internals.addresses import as_ray_says, current_cluster, dashboard_address, head_of_auto
from fray_ray._ray_internals.agent_ports import agent_ports, await_agent
from fray_ray._ray_internals.calls import (
    actor_id,
    actor_sender,
    class_name,
    let_actors_be_made_in_signal_handlers,
    method_signatures,
    on_ready,
    stream_ref,
    task_sender,
    was_made_here,
)
from fray_ray._ray_internals.class_identity import share_class_ids
from fray_ray._ray_internals.dashboard import (
    METADATA,
    NODES,
    DashboardClient,
    RefusedError,
    failed_at_agent,
    failure_of,
    found_no_node,
    has_no_agent,
    is_known,
    is_too_large,
    living_addresses,
    log_file,
    package,
    python_of,
    request,
    upload_workspace,
)
from fray_ray._ray_internals.deaths import actor_in, death_of, is_death_without_cause, is_of_actor
from fray_ray._ray_internals.environment import ADDRESS, JOB_CONFIG, is_of_one_process
from fray_ray._ray_internals.errors import bound_error_texts, ends_worker, installers_output
from fray_ray._ray_internals.family import drivers_of, kill_actors, living_actors_of, supervisor_is_gone
from fray_ray._ray_internals.kv import (
    delete_table_entry,
    kv_delete,
    kv_get,
    kv_list,
    kv_put,
    settled_table_entry,
    table_entry,
    table_submissions,
    waiting_table_entry,
    write_table_entry,
)
from fray_ray._ray_internals.local_clusters import (
    KEEPS_LOOPBACK,
    announce_preemption,
    is_rays,
    keeping_loopback,
    nodes_known_alive,
    restart_gcs,
)
from fray_ray._ray_internals.node_processes import dead_processes, end_node, start_node
from fray_ray._ray_internals.nodes import draining_nodes, free_resources_of_nodes
from fray_ray._ray_internals.pins import pin_package
from fray_ray._ray_internals.processes import driver_log, driver_log_name, log_folder, runs_tasks
from fray_ray._ray_internals.worker_fork_server import start_fork_server
from fray_ray._ray_internals.worker_setup import SETUP_WORKER, SOCKET
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types
messages: Any = common_pb2  # nor have these any

# A job of Ray's that leaves an actor behind which nobody has a handle of, and says what it was given.
PROGRAM = f"""
import os, ray
ray.init(logging_level="error", log_to_driver=False)
@ray.remote(num_cpus=0, lifetime="detached")
class Left:
    def answer(self): return 1
ray.get(Left.remote().answer.remote())
print("told", "{JOB_CONFIG}" in os.environ, os.environ["{ADDRESS}"])
"""


@pytest.fixture(scope="module")
def cluster(ray_cluster: LocalRayCluster) -> LocalRayCluster:
    """The cluster of the session, which this process has joined."""
    ray.init(ray_cluster.address, ignore_reinit_error=True, log_to_driver=False)
    return ray_cluster


@pytest.fixture(scope="module")
def client(cluster: LocalRayCluster) -> DashboardClient:
    return DashboardClient(cluster.dashboard)


@pytest.fixture(scope="module")
def job(client: DashboardClient, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Ray job that has ended, by its submission."""
    program = tmp_path_factory.mktemp("program") / "program.py"
    program.write_text(PROGRAM)
    submission: str = client.submit_job(entrypoint=f"{sys.executable} {program}")
    until(lambda: client.get_job_status(submission).is_terminal(), "the job ends")
    assert client.get_job_status(submission) is JobStatus.SUCCEEDED, client.get_job_logs(submission)
    return submission


@pytest.fixture
def node(cluster: LocalRayCluster) -> Iterator[str]:
    node = cluster.add_node(num_cpus=1)
    yield node
    if node in cluster.node_ids():
        cluster.kill_node(node)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_an_agent_is_waited_for_and_one_that_never_comes_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as agent:
        await_agent({"dashboard_agent_listen_port": agent.getsockname()[1]}, 60.0)
        port = agent.getsockname()[1]
    with pytest.raises(TimeoutError, match=str(port)):
        await_agent({"dashboard_agent_listen_port": port}, 0.0)


@ray.remote  # type: ignore[untyped-decorator]
def add(*args: int, **kwargs: int) -> int:
    return sum(args) + sum(kwargs.values())


class Sums:
    def add(self, *args: int, **kwargs: int) -> int:
        return sum(args) + sum(kwargs.values())


Adder: Any = ray.remote(num_cpus=0)(Sums)


# --- kv ---


def test_the_heads_store_gives_lists_and_deletes_what_was_put(cluster: LocalRayCluster) -> None:
    kv_put("fray-internals.a", b"1")
    kv_put("fray-internals.a", b"2", b"elsewhere")
    assert (kv_get("fray-internals.a"), kv_get("fray-internals.a", b"elsewhere")) == (b"1", b"2")
    assert kv_list("fray-internals.") == ["fray-internals.a"]
    kv_delete("fray-internals.a")
    assert (kv_get("fray-internals.a"), kv_list("fray-internals.")) == (None, [])


def test_what_is_written_into_an_entry_of_the_job_table_is_what_ray_tells(
    client: DashboardClient, job: str
) -> None:
    entry = table_entry(job)
    assert entry is not None
    assert (entry["status"], table_entry("no-such-job")) == ("SUCCEEDED", None)
    assert (table_submissions(job[:-1]), table_submissions("no-such")) == ([job], [])
    write_table_entry(job, {**entry, "metadata": {"said": "here"}})
    assert client.get_job_info(job).metadata == {"said": "here"}


def test_an_entry_of_ours_is_a_job_that_waits_until_it_is_settled_or_rays_own(
    client: DashboardClient, cluster: LocalRayCluster
) -> None:
    waits = waiting_table_entry("true  # by hand", {"said": "here"}, cluster.node_ids()[0])
    write_table_entry("internals-waits", waits)
    told = client.get_job_info("internals-waits")
    assert (told.status, told.metadata, told.entrypoint) == ("PENDING", {"said": "here"}, "true  # by hand")
    write_table_entry("internals-waits", settled_table_entry(waits, "STOPPED", "nobody wants it"))
    told = client.get_job_info("internals-waits")
    assert (told.status, told.message) == ("STOPPED", "nobody wants it")
    delete_table_entry("internals-waits")
    assert table_entry("internals-waits") is None
    client.submit_job(entrypoint="true", submission_id="internals-waits")
    until(lambda: client.get_job_status("internals-waits") == "SUCCEEDED", "Ray has run it", 200)


# --- pins ---


def test_a_package_that_is_pinned_is_kept_for_that_long(client: DashboardClient) -> None:
    answer = request(client, "PUT", package("internals-pinned.zip"), data=b"here")
    assert answer.status_code == 200
    pin_package("gcs://internals-pinned.zip", 5)
    assert kv_get("gcs://internals-pinned.zip") == b"here"
    until(lambda: kv_get("gcs://internals-pinned.zip") is None, "nobody uses it, and its time is over")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a library, when Ray's dashboard is imported
def test_ray_deletes_a_package_some_time_after_a_look_at_it(
    client: DashboardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the dashboard's own method, in this process: there it would take ten minutes."""
    from ray.dashboard.modules.job.job_head import JobHead

    monkeypatch.setenv("RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S", "1")
    for name in ("internals-looked-at", "internals-unseen"):
        assert request(client, "PUT", package(name), data=b"here").status_code == 200
    look: Any = SimpleNamespace(match_info={"protocol": "gcs", "package_name": "internals-looked-at"})
    assert asyncio.run(JobHead.get_package(SimpleNamespace(), look)).status == 200
    until(lambda: kv_get("gcs://internals-looked-at") is None, "nobody uses it, and its time is over")
    assert kv_get("gcs://internals-unseen") == b"here"


# --- processes, environment ---


def test_a_jobs_output_is_among_the_logs_of_its_node(job: str) -> None:
    assert Path(driver_log(job)).parent == Path(log_folder())
    assert Path(driver_log(job)).name == driver_log_name(job)
    assert "told True" in Path(driver_log(job)).read_text()


def test_a_driver_and_a_task_are_distinguished(cluster: LocalRayCluster) -> None:
    def look() -> bool:
        from fray_ray._ray_internals.processes import runs_tasks

        return runs_tasks()

    assert (runs_tasks(), ray.get(ray.remote(look).remote())) == (False, True)


def test_a_jobs_driver_finds_its_configuration_and_its_head(cluster: LocalRayCluster, job: str) -> None:
    assert f"told True {cluster.address}\n" in Path(driver_log(job)).read_text()


def test_what_a_worker_has_to_itself_is_known(cluster: LocalRayCluster) -> None:
    def names() -> list[str]:
        return list(os.environ)

    found = [name for name in ray.get(ray.remote(names).remote()) if is_of_one_process(name)]
    assert "RAY_RAYLET_PID" in found
    assert not is_of_one_process(ADDRESS)
    assert not is_of_one_process("PATH")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"env_vars": {"ONE": "an 'odd' word", "TWO": ""}}, ("an 'odd' word", "", False)),
        ({"env_vars": {"ONE": "1", "TWO": "${ONE}2${NOBODYS}"}}, ("1", "12", False)),
        ({"env_vars": {"ONE": "1"}, "py_executable": f"{sys.executable} -X dev"}, ("1", None, True)),
    ],
    ids=["variables", "variables-of-variables", "another-python"],
)
def test_a_worker_is_set_up_as_by_rays_own_program(
    cluster: LocalRayCluster, asked: dict[str, Any], found: tuple[str, str | None, bool]
) -> None:
    def told() -> tuple[str | None, str | None, bool]:
        return os.environ.get("ONE"), os.environ.get("TWO"), sys.flags.dev_mode

    assert ray.get(ray.remote(told).options(runtime_env=asked).remote()) == found


_STARTED = """
import json, os, signal, sys
print(json.dumps({
    "arguments": sys.argv[1:],
    "first": sys.path[0],
    "variable": os.environ.get("ONE"),
    "directory": os.getcwd(),
    "group": os.getpgid(0) == os.getpid(),
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "loaded": "aiohttp" in sys.modules,
    "ray": "ray" in sys.modules,
    "parent": os.getppid(),
}))
for descriptor in sys.argv[2:]:
    os.write(int(descriptor), descriptor.encode())
"""


def set_up(folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What a worker finds that a raylet would start so, with descriptors beside its output."""
    program = folder / "worker.py"
    program.write_text(_STARTED)
    # Far apart: some have numbers that the fork server has given to others of them.
    files: dict[int, Path] = {}
    for number in range(20, 80, 3):
        path = folder / f"file{number}"
        with path.open("wb") as file:
            files[fcntl.fcntl(file, fcntl.F_DUPFD, number)] = path
    numbers = [str(descriptor) for descriptor in files]
    done = subprocess.run(
        [sys.executable, SETUP_WORKER, program, "--language=PYTHON", "an argument", *numbers],
        env={**os.environ, "RAY_TMPDIR": str(folder), "ONE": "1", **variables},
        cwd=folder,
        stdout=subprocess.PIPE,
        pass_fds=list(files),
        preexec_fn=os.setpgrp,
        timeout=200,
        check=True,
    )
    for descriptor, path in files.items():
        os.close(descriptor)
        assert path.read_text() == str(descriptor)
        path.unlink()
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("arguments") == ["an argument", *numbers]
    assert (found.pop("first"), found.pop("directory")) == (str(folder), str(folder))
    assert (found.pop("variable"), found.pop("group"), found.pop("blocked")) == ("1", True, [])
    assert not found.pop("ray")
    return found


def test_a_worker_that_is_forked_finds_what_one_that_is_started_finds(tmp_path: Path) -> None:
    server = start_fork_server(str(tmp_path / SOCKET))
    try:
        forked = {"loaded": True, "parent": server.pid}
        assert set_up(tmp_path, {}) == forked
        assert set_up(tmp_path, {"PYTHONBREAKPOINT": "0"}) == forked  # of nodes that a program adds later
        started = {"loaded": False, "parent": os.getpid()}
        assert set_up(tmp_path, {"PYTHONOPTIMIZE": "1"}) == started  # which Python reads before all else
        assert (
            set_up(tmp_path, {f"TWO_{n}": "2" * 100_000 for n in range(5)}) == started
        )  # too much to hand over
        assert set_up(tmp_path, {}) == forked
        server.kill()
        server.wait()
        assert set_up(tmp_path, {}) == started
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize("asked", [{}, {"env_vars": {"ONE": "1"}}], ids=["nothing", "variables"])
def test_workers_of_a_cluster_on_one_machine_are_forked(
    cluster: LocalRayCluster, asked: dict[str, Any]
) -> None:
    def parent() -> str:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text()

    assert "worker_fork_server" in ray.get(ray.remote(parent).options(runtime_env=asked).remote())


def test_a_fork_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    server = start_fork_server(str(tmp_path / SOCKET))
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(200) == 0


# --- nodes ---


def test_the_head_says_what_is_free_on_each_node(cluster: LocalRayCluster, node: str) -> None:
    until(lambda: free_resources_of_nodes().get(node, {}).get("CPU") == 1, "the node and its CPU are known")


def test_a_node_that_is_drained_is_known_with_its_deadline(cluster: LocalRayCluster, node: str) -> None:
    # A node on which nothing runs goes at once.
    actor = Adder.options(label_selector={"ray.io/node-id": node}).remote()
    assert ray.get(actor.add.remote(1)) == 1
    assert node not in draining_nodes()
    announce_preemption(cluster.address, node, 600.0)
    until(lambda: node in draining_nodes(), "the head says so")
    left = draining_nodes()[node] / 1000 - time.time()
    assert 0.0 < left <= 600.0


def test_a_node_that_was_killed_is_known_in_the_end(cluster: LocalRayCluster, node: str) -> None:
    assert nodes_known_alive(cluster.address, [node], 30) == [True]
    cluster.kill_node(node)
    until(lambda: nodes_known_alive(cluster.address, [node], 30) == [False], "the head knows")


def test_a_node_is_started_looked_at_and_ended(cluster: LocalRayCluster) -> None:
    held = HeldPorts()
    with agent_ports(held) as ports:
        node = start_node(
            head=False,
            registers_within=150.0,
            gcs_address=cluster.address,
            node_ip_address="127.0.0.1",
            num_cpus=1,
            object_store_memory=80 << 20,
            include_log_monitor=False,
            **ports,
        )
    try:
        assert nodes_known_alive(cluster.address, [node.node_id], 30) == [True]
        assert dead_processes(node) == []
        until(lambda: all(map(listens, ports.values())), "its agents listen where they were asked to")
        (raylet,) = node.all_processes["raylet"]
        raylet.process.kill()
        until(lambda: "raylet" in dead_processes(node), "its death is seen")
    finally:
        end_node(node)
        held.close()
    until(lambda: nodes_known_alive(cluster.address, [node.node_id], 30) == [False], "the head knows")


def test_a_cluster_that_keeps_loopback_is_at_127(cluster: LocalRayCluster) -> None:
    assert os.environ[KEEPS_LOOPBACK] == "0"  # the cluster of the tests does
    assert as_ray_says("localhost:6379") == "127.0.0.1:6379"
    patch = keeping_loopback()
    patch.start()
    patch.stop()
    assert cluster.address.startswith("127.0.0.1:")


def test_what_ray_has_started_is_known_by_its_command(cluster: LocalRayCluster) -> None:
    def command() -> list[str]:
        return Path("/proc/self/cmdline").read_text().split("\0")

    assert is_rays(ray.get(ray.remote(command).remote()), "/somewhere")
    assert is_rays(["python", "worker.py", "--socket=/somewhere/raylet"], "/somewhere")
    assert not is_rays(["sleep", "60"], "/somewhere")
    ours = process_tree.with_variable("RAY_TMPDIR", os.environ["RAY_TMPDIR"])
    of_the_dashboard = [pid for pid in ours if "MetricsHead" in " ".join(process_tree.command_of(pid))]
    assert of_the_dashboard
    assert all(is_rays(process_tree.command_of(pid), "/somewhere") for pid in of_the_dashboard)


def test_a_gcs_ends_before_another_starts_at_its_port() -> None:
    """test_head_restart.py does it to a head."""
    calls: list[str] = []
    head: Any = SimpleNamespace(
        kill_gcs_server=lambda: calls.append("kill"), start_gcs_server=lambda: calls.append("start")
    )
    restart_gcs(head)
    assert calls == ["kill", "start"]


# --- family ---


def test_actors_that_a_job_left_behind_are_found_by_its_drivers_and_ended(
    cluster: LocalRayCluster, job: str
) -> None:
    drivers = drivers_of(job)
    until(lambda: drivers_of(job) and all(drivers_of(job).values()), "Ray says that its drivers have ended")
    (left,) = living_actors_of(drivers)
    kill_actors([left], timeout=10.0)
    until(lambda: living_actors_of(drivers) == [], "the actor has ended")
    kill_actors([], timeout=10.0)


def test_a_job_that_runs_has_a_supervisor_and_one_that_has_ended_has_none(
    client: DashboardClient, job: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    running: str = client.submit_job(entrypoint=f"until test -e {gate}; do sleep 0.05; done")
    assert not supervisor_is_gone(running)
    gate.touch()
    until(lambda: supervisor_is_gone(running), "it has ended")
    assert supervisor_is_gone(job)


# --- addresses ---


def test_auto_means_the_cluster_of_this_machine(
    cluster: LocalRayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS, cluster.address)
    assert head_of_auto() == cluster.address


def test_an_address_is_said_as_ray_says_it(cluster: LocalRayCluster) -> None:
    assert as_ray_says(cluster.address) == ray.get_runtime_context().gcs_address
    assert as_ray_says("no address") is None


def test_a_cluster_has_one_id_that_every_process_in_it_knows(cluster: LocalRayCluster) -> None:
    mine = current_cluster()
    assert mine is not None
    assert ray.get(ray.remote(current_cluster).remote(), timeout=60) == mine
    alone = "from fray_ray._ray_internals.addresses import current_cluster; print(current_cluster())"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_the_head_knows_its_dashboard(cluster: LocalRayCluster) -> None:
    assert f"http://{dashboard_address(cluster.address, 30.0)}" == cluster.dashboard


# --- dashboard ---


def test_no_question_to_the_dashboard_waits_for_ever(
    client: DashboardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = requests.request

    def note(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs.get("timeout"))
        return real(*args, **kwargs)

    monkeypatch.setattr(requests, "request", note)
    assert isinstance(client, JobSubmissionClient)
    client.list_jobs()
    request(client, "GET", "/api/version")
    request(client, "GET", "/api/version", timeout=7)
    assert asked == [(5.0, 60.0), (5.0, 60.0), 7]


def test_what_is_put_into_the_heads_memory_is_found_there(client: DashboardClient) -> None:
    assert request(client, "PUT", package("fray-internals.sent"), data=b"\0data").status_code == 200
    assert kv_get("gcs://fray-internals.sent") == b"\0data"
    kv_delete("gcs://fray-internals.sent")


def test_what_ray_refuses_is_refused_and_of_a_job_that_it_has_it_says_so(
    client: DashboardClient, job: str
) -> None:
    again = request(client, "POST", "/api/jobs/", json_data={"entrypoint": "true", "submission_id": job})
    refused = failure_of(again)
    assert isinstance(refused, RefusedError)
    assert is_known(refused)
    assert not failed_at_agent(again.text), "its agent says 400"
    missing = failure_of(request(client, "GET", "/api/jobs/no-such-job"))
    assert isinstance(missing, RefusedError)
    assert (missing.status, is_known(missing)) == (404, False)


def test_what_is_too_large_for_the_heads_memory_is_refused_as_that(client: DashboardClient) -> None:
    answer = request(client, "PUT", package("fray-internals.large"), data=bytes(101 << 20))
    assert isinstance(failure_of(answer), RefusedError)
    assert is_too_large(answer.text)
    assert not is_too_large(request(client, "GET", "/api/jobs/no-such-job").text)


def test_a_node_that_the_dashboard_asks_in_vain_is_known_by_its_trace(
    client: DashboardClient, job: str
) -> None:
    entry = table_entry(job)
    assert entry is not None
    gone = {"driver_node_id": "0" * 56, "driver_agent_http_address": "http://127.0.0.1:9"}
    write_table_entry("internals-gone", {**entry, **gone})
    answer = request(client, "GET", "/api/jobs/internals-gone/logs")
    delete_table_entry("internals-gone")
    assert answer.status_code == 500
    assert found_no_node(answer.text)
    assert type(failure_of(answer)) is ConnectionError
    assert not found_no_node(request(client, "GET", f"/api/jobs/{job}/logs").text)


def test_a_cluster_without_an_agent_says_so_in_words_that_ray_has() -> None:
    source = Path(ray.__file__).parent / "dashboard/modules/job/job_head.py"
    (line,) = filter(has_no_agent, source.read_text().splitlines())
    assert "text=" in line


def test_a_failure_of_an_agent_is_passed_on_in_words_that_ray_has() -> None:
    source = Path(ray.__file__).parent / "dashboard/modules/job/job_head.py"
    (line,) = (each for each in source.read_text().splitlines() if "Request failed with" in each)
    assert failed_at_agent(line.replace("{status}", "500"))
    assert not failed_at_agent(line.replace("{status}", "400"))


def test_a_workspace_is_uploaded_once_and_named_by_the_environment(
    client: DashboardClient, tmp_path: Path
) -> None:
    (tmp_path / "file.txt").write_text("came along")
    environment = {"working_dir": str(tmp_path)}
    upload_workspace(client, environment)
    assert environment["working_dir"].startswith("gcs://")
    assert kv_get(environment["working_dir"]) is not None
    kv_delete(environment["working_dir"])


def test_a_file_among_the_logs_of_a_node_is_read_whole(
    cluster: LocalRayCluster, client: DashboardClient
) -> None:
    text = "".join(f"line {number}\n" for number in range(2_000))
    path = Path(log_folder(), "fray-internals & more.txt")
    path.write_text(text)
    answer = request(client, "GET", log_file(cluster.node_ids()[0], path.name))
    assert (answer.status_code, answer.text) == (200, text)


def test_the_python_of_the_cluster_is_known(client: DashboardClient) -> None:
    assert python_of(request(client, "GET", METADATA).json()) == platform.python_version()
    odd: list[Any] = [None, [], {"data": None}, {"data": {"pythonVersion": 3}}]
    assert list(map(python_of, odd)) == [None] * len(odd)


def test_the_addresses_of_living_nodes_are_known_whatever_the_dashboard_says(client: DashboardClient) -> None:
    assert living_addresses(request(client, "GET", NODES).json()) == {"127.0.0.1"}
    alive, dead = {"state": "ALIVE", "nodeManagerAddress": "10.0.0.2"}, {"state": "DEAD"}
    nodes = [{"ip": "10.0.0.1"}, {"raylet": alive}, {"ip": "10.0.0.3", "raylet": dead}, {}, None, {"ip": 7}]
    assert living_addresses({"data": {"summary": nodes}}) == {"10.0.0.1", "10.0.0.2"}
    broken: list[Any] = [None, [], {"data": None}, {"data": {"summary": {}}}, "text"]
    for answer in broken:
        assert living_addresses(answer) == set()


# --- calls ---


def test_a_task_is_submitted_without_rays_own_remote_and_answers_alike(cluster: LocalRayCluster) -> None:
    send = task_sender(add, {"num_cpus": 0})
    ray.get(send((), {}))  # the first of a function is Ray's own, which exports it
    assert ray.get(send((1, ray.put(2)), {"more": 3})) == ray.get(add.remote(1, 2, more=3)) == 6
    assert direct_calls.task_sender(add, {"num_cpus": 0}, send) is not None


def test_an_actor_is_called_without_rays_own_remote_and_answers_alike(cluster: LocalRayCluster) -> None:
    actor = Adder.remote()
    send = actor_sender(actor, "add")
    assert ray.get(send((1, 2), {"more": 3})) == ray.get(actor.add.remote(1, 2, more=3)) == 6
    assert direct_calls.actor_sender(actor, actor.add, send) is not None


def test_handles_say_whose_they_are(cluster: LocalRayCluster) -> None:
    maker = Adder.options(name="internals", namespace="internals").remote()
    found = ray.get_actor("internals", namespace="internals")
    assert actor_id(maker) == actor_id(found) != actor_id(Adder.remote())
    assert (class_name(maker), class_name(found)) == ("Sums", "Sums")
    assert "add" in method_signatures(found)
    assert (was_made_here(maker), was_made_here(found)) == (True, False)


def test_a_stream_is_cancelled_by_its_reference(cluster: LocalRayCluster) -> None:
    def forever() -> Iterator[int]:
        while True:
            yield 1
            time.sleep(0.01)

    stream = ray.remote(forever).options(num_returns="streaming", num_cpus=0).remote()
    assert ray.get(next(stream)) == 1
    ray.cancel(stream_ref(stream))

    def read_on() -> None:
        for ref in stream:
            ray.get(ref, timeout=200)

    with pytest.raises(typed_ray.exceptions.RayError):
        read_on()


def test_who_waits_for_a_reference_without_its_value_is_called(cluster: LocalRayCluster) -> None:
    found: list[BaseException | None] = []
    failing = add.remote("not a number")
    for ref in (add.remote(1), failing):
        on_ready(ref, found.append)
    until(lambda: found == [None, None], "both callbacks ran")
    threads: list[int] = []
    for ref in (failing, ray.put(None)):
        on_ready(ref, lambda _: threads.append(threading.get_ident()))
    until(lambda: len(threads) == 2, "so did those of what is there already")
    assert threading.get_ident() not in threads


# --- errors ---


def test_long_texts_of_failures_are_cut_in_the_middle() -> None:
    bound_error_texts()
    text = "first\n" + "x" * 100_000 + "\nlast"
    error: Any = RayTaskError
    said = str(error("f", text, ValueError("last")))
    assert len(said) < 20_000
    assert "first" in said
    assert said.rstrip().endswith("last")


def test_what_an_installer_wrote_is_in_rays_error_of_an_environment() -> None:
    error: Any = SubprocessCalledProcessError
    found = installers_output(str(error(1, ["pip"], output="no such package", cmd_index=4)))
    assert str(found).split() == ["no", "such", "package"]
    assert installers_output("another error") is None


def test_how_ray_ends_a_worker_is_not_how_a_program_exits(cluster: LocalRayCluster) -> None:
    def terminated() -> bool:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit as error:
            return ends_worker(error)
        raise AssertionError("Ray's handler raises at once")

    assert ray.get(ray.remote(terminated).remote(), timeout=60)
    assert not ends_worker(SystemExit(1))


def test_why_an_actor_has_ended_is_known_to_the_head(cluster: LocalRayCluster) -> None:
    class Mortal:
        def pid(self) -> int:
            return os.getpid()

    def call() -> None:
        with suppress(ray.exceptions.ActorUnavailableError):  # the head does not know yet
            ray.get(mortal.pid.remote(), timeout=200)

    mortal = ray.remote(Mortal).remote()
    os.kill(ray.get(mortal.pid.remote(), timeout=200), signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError) as raised:
        until(call, "its end is known")
    assert not is_death_without_cause(raised.value)
    assert str(death_of(actor_id(mortal).hex())) == str(raised.value)


def test_a_death_without_a_cause_is_not_an_assertion_of_a_method(cluster: LocalRayCluster) -> None:
    def fails() -> None:
        raise AssertionError

    with pytest.raises(AssertionError) as raised:
        ray.get(ray.remote(fails).remote(), timeout=60)
    assert not is_death_without_cause(raised.value)
    assert is_death_without_cause(AssertionError())


@pytest.mark.parametrize("told", [messages.RayErrorInfo(), None], ids=["another cause", "none"])
def test_the_death_of_an_actor_is_known_by_what_ray_stores_of_it(
    cluster: LocalRayCluster, monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    worker: Any = global_worker
    stores: Any = serialization
    known = worker.get_serialization_context()
    monkeypatch.setattr(known, "_deserialize_error_info", lambda *_: told)
    stored: Any = None if told is None else b"of the store"
    kind = str(messages.ErrorType.Value("ACTOR_DIED")).encode()
    (error,) = known.deserialize_objects([stores.SerializedRayObject(stored, kind, None)], [ray.put(1)], {})
    assert is_of_actor(error) or isinstance(error, ray.exceptions.ActorDiedError)


def test_an_actor_is_made_while_another_is_that_holds_rays_lock(cluster: LocalRayCluster) -> None:
    let_actors_be_made_in_signal_handlers()
    lock = "_recorded_library_usages_lock"
    made: list[Any] = []

    def make() -> None:
        with getattr(usage_lib, lock):
            made.append(ray.remote(dict).remote())

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    maker.join(60)
    assert len(made) == 1


def test_which_actor_has_ended_is_in_the_text() -> None:
    assert actor_in("it died\n\tclass_name: Counter\n\tname: tally\n") == ("Counter", "tally")
    assert actor_in("Selected to kill: (Actor(0a): job ID=1, task name=Counter.__init__, pid=2)") == (
        "Counter",
        None,
    )
    being_made = "Selected to kill: (Task: job ID=1, task name=Counter.__init__, pid=2)"
    assert actor_in(being_made) == ("Counter", None)
    assert actor_in("Selected to kill: (Task: job ID=1, task name=work, pid=2)") == (None, None)
    assert actor_in("it died") == (None, None)


# --- classes ---


def test_a_class_has_one_id_in_both_copies_of_cloudpickle() -> None:
    class Local:
        pass

    share_class_ids()
    assert ray.cloudpickle.loads(cloudpickle.dumps(Local)) is Local
    assert cloudpickle.loads(ray.cloudpickle.dumps(Local)) is Local
