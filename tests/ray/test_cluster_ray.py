"""What RayCluster promises beyond the contract of every cluster."""

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray
from job_processes import kill_scheduler
from ray.job_submission import JobSubmissionClient
from wheels import wheel
from words_in_files import files_with

from fray import RuntimeEnv
from fray.cluster import (
    Entrypoint,
    ExitReason,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    TpuConfig,
    create_environment,
)
from fray.testing.context import ContextFixtures  # noqa: F401 - it registers what pytest rewrites
from fray.testing.gates import Gate, until
from fray_ray import RayCluster, RayClusterContext
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types


@pytest.fixture
def cluster(ray_cluster: LocalRayCluster) -> Iterator[RayCluster]:
    with RayCluster(ray_cluster.address) as cluster:
        yield cluster


@pytest.fixture
def driver(ray_cluster: LocalRayCluster) -> None:
    ray.init(ray_cluster.address, ignore_reinit_error=True, log_to_driver=False)


def running(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def run(cluster: RayCluster, entrypoint: Any, **fields: Any) -> JobInfo:
    return cluster.wait(cluster.launch(JobRequest("job", entrypoint, **fields)), timeout=200)


def test_rays_own_table_has_the_job_under_its_id_with_name_owner_and_log(
    cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    long = "print('for all to see', *('x' * 1000 for _ in range(300)), sep='\\n')"
    job_id = cluster.launch(JobRequest("listed", Entrypoint.from_binary("python", ["-c", long])))
    assert cluster.wait(job_id, timeout=200).status is JobStatus.SUCCEEDED
    client = JobSubmissionClient(ray_cluster.dashboard)
    until(lambda: client.get_job_status(job_id) == "SUCCEEDED", "Ray sees the end")
    details = client.get_job_info(job_id)
    assert details.metadata is not None
    assert details.metadata["fray.name"] == "listed"
    assert details.metadata["fray.owner"]
    command = details.entrypoint or ""  # of the job's own process; then for who reads the table
    assert f".job_process {job_id} $$ $PPID;" in command
    assert command.endswith(f"  # listed: {shlex.join(['python', '-c', long])}")
    log = client.get_job_logs(job_id)
    assert "[replica-0] for all to see\n" in log
    # By which readers of the end of the log know how it joins what they have read.
    marks = [line for line in log.splitlines() if line.startswith("[fray] mark ")]
    assert len(set(marks)) == len(marks) >= 1  # how many depends on the pieces in which the output came


def test_a_line_without_an_end_is_shown_in_pieces_while_it_is_written(
    cluster: RayCluster, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    program = (
        "import pathlib, sys, time; sys.stdout.write('x' * 3_000_000); sys.stdout.flush()\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)\nprint('end')"
    )
    job_id = cluster.launch(JobRequest("endless", Entrypoint.from_binary("python", ["-c", program])))

    def written() -> str:
        return "".join(cluster.monitor(job_id, replica=0, follow=False))

    until(lambda: written().count("x") > 1_000_000, "the first pieces are in the log", 120)
    gate.touch()
    assert cluster.wait(job_id, timeout=120).status is JobStatus.SUCCEEDED
    assert "x" * 3_000_000 + "end" in written()


def test_what_ray_stops_reads_stopped(
    cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    started = Gate(tmp_path / "started")

    def work() -> None:
        import time

        started.open()
        time.sleep(600)

    job_id = cluster.launch(JobRequest("stopped", work))
    started.wait()
    JobSubmissionClient(ray_cluster.dashboard).stop_job(job_id)
    info = cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)


@pytest.mark.parametrize("gang", [False, True], ids=["alone", "gang"])
def test_ray_job_stop_leaves_a_program_two_seconds_after_sigterm_and_no_process(
    cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path, gang: bool
) -> None:
    def work() -> None:
        import os
        import signal
        import time

        told: list[float] = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
        (tmp_path / "draft").write_text(str(os.getpid()))
        (tmp_path / "draft").rename(tmp_path / "up")
        while True:  # it would never end by itself
            time.sleep(0.02)
            if told:
                (tmp_path / "draft").write_text(str(time.monotonic() - told[0]))
                (tmp_path / "draft").rename(tmp_path / "lived")

    job_id = cluster.launch(JobRequest("stopped", work, gang=gang))
    up, lived = tmp_path / "up", tmp_path / "lived"
    until(up.exists, "it runs")
    pid = up.read_text()
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "stop", job_id]
    subprocess.run([*command, "--address", ray_cluster.dashboard], check=True, timeout=200)
    assert JobSubmissionClient(ray_cluster.dashboard).get_job_status(job_id) == "STOPPED"
    until(lambda: not running(pid), "its program is gone, too", 20.0)
    assert float(lived.read_text()) > 1.0  # of two seconds, on a machine that may be busy
    assert cluster.wait(job_id, timeout=200).status is JobStatus.STOPPED


def test_stopping_a_job_ends_its_tasks_and_its_detached_actors(
    cluster: RayCluster, driver: None, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"

    def work() -> None:
        import os
        import time

        from fray import get_job_context

        def note() -> None:
            with pids.open("a") as file:
                file.write(f"{os.getpid()}\n")

        def toil() -> None:
            note()
            time.sleep(600)

        class Lasting:
            def start(self) -> None:
                note()

        context = get_job_context()
        context.get(context.create_actor(Lasting, name="lasting", lifetime="detached").start())
        context.get(context.create_actor(Lasting, lifetime="detached").start())
        context.get(context.run(toil))

    job_id = cluster.launch(JobRequest("family", work))
    until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "all run")
    cluster.terminate(job_id, grace=1.0)
    until(lambda: not any(map(running, pids.read_text().split())), "all are gone")
    list_named: Any = ray.util.list_named_actors
    until(lambda: "lasting" not in [one["name"] for one in list_named(all_namespaces=True)], "it is free")


def test_a_job_shares_named_actors_with_the_jobs_below_it(cluster: RayCluster) -> None:
    def child() -> None:
        from fray import get_job_context

        context = get_job_context()
        context.get(context.get_actor("shared").add(5))

    def parent() -> None:
        from fray import Entrypoint, JobRequest, current_cluster, get_job_context

        class Tally:
            total = 0

            def add(self, number: int) -> int:
                self.total += number
                return self.total

        context = get_job_context()
        tally = context.create_actor(Tally, name="shared")
        below = current_cluster()
        below.wait(below.launch(JobRequest("child", Entrypoint(callable=child))), raise_on_failure=True)
        print("total", context.get(tally.add(0)))

    info = run(cluster, Entrypoint(callable=parent), resources=ResourceConfig(cpu=1))
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert "total 5" in list(cluster.monitor(info.job_id))


def test_jobs_that_one_program_launches_side_by_side_share_named_actors(cluster: RayCluster) -> None:
    def train() -> None:
        import time

        from fray import get_job_context

        class Weights:
            version = 0

            def publish(self, version: int) -> None:
                self.version = version

            def latest(self) -> int:
                return self.version

        context = get_job_context()
        weights = context.create_actor(Weights, name="side-by-side")
        while context.get(weights.latest()) == 0:
            time.sleep(0.05)
        print("version", context.get(weights.latest()))

    def rollout() -> None:
        import time

        from fray import ActorNotFoundError, get_job_context

        def publish(version: int) -> None:
            here = get_job_context()
            here.get(here.get_actor("side-by-side").publish(version))

        context = get_job_context()
        while True:
            try:
                context.get_actor("side-by-side")
                break
            except ActorNotFoundError:  # the other job is on its way
                time.sleep(0.05)
        context.get(context.run(publish, 7))  # a task of the job is of its family, too

    half = ResourceConfig(cpu=0.5, ram="64m")
    first, second = (cluster.launch(JobRequest(fn.__name__, fn, resources=half)) for fn in (train, rollout))
    for info in cluster.wait([first, second], timeout=200):
        assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert list(cluster.monitor(first)) == ["version 7"]


def test_the_context_that_a_jobs_variables_name_is_the_one_it_finds(cluster: RayCluster) -> None:
    def look() -> None:
        from fray import get_job_context

        print(get_job_context().namespace)  # type: ignore[attr-defined]

    environment = create_environment(env_vars={"FRAY_CONTEXT_SPEC": "ray?namespace=theirs"})
    info = run(cluster, Entrypoint(callable=look), environment=environment, resources=ResourceConfig(cpu=0.5))
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert list(cluster.monitor(info.job_id)) == ["theirs"]


def test_a_jobs_tasks_find_its_variables_and_whose_they_are(cluster: RayCluster) -> None:
    def look() -> str:
        import os
        import subprocess

        from fray import Entrypoint, JobRequest, current_cluster

        child = current_cluster().launch(JobRequest("below", Entrypoint.from_binary("true", [])))
        current_cluster().wait(child, timeout=200)
        known = subprocess.check_output(["ps", "-A", "-ww", "-o", "args="])
        found = os.environ["FOUND"]
        return f"{len(found)} {found.encode() in known} {child.startswith(os.environ['FRAY_JOB_ID'] + '/')}"

    def work() -> None:
        from fray import get_job_context

        context = get_job_context()
        print(context.get(context.run(look)))

    secret = "found-by-the-job-alone"
    environment = create_environment(env_vars={"FOUND": secret})
    info = run(cluster, Entrypoint(callable=work), environment=environment, resources=ResourceConfig(cpu=1))
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert list(cluster.monitor(info.job_id)) == [f"{len(secret)} False True"]
    logs = Path(os.environ["RAY_TMPDIR"], "ray", "session_latest", "logs")
    assert not files_with([secret], logs)


def test_a_job_without_an_accelerator_keeps_jax_off_it(cluster: RayCluster) -> None:
    info = run(cluster, Entrypoint.from_binary("sh", ["-c", "echo jax=$JAX_PLATFORMS"]))
    assert list(cluster.monitor(info.job_id)) == ["jax=cpu"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a folder of this test, by HTTP: no index is asked for a wheel that a project names."""
    handler = partial(SimpleHTTPRequestHandler, directory=os.fspath(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_packages_and_extras_are_installed_for_a_job_and_its_tasks(
    cluster: RayCluster, tmp_path: Path, served: str
) -> None:
    def work() -> None:
        from importlib import import_module

        from fray import create_context

        def names() -> list[str]:
            return [str(import_module(name).NAME) for name in ("by_name_for_a_test", "by_extra_for_a_test")]

        # The job is on the head, which has two CPUs: a task that takes three has its node install them too.
        with create_context("ray?num_cpus=3") as context:
            print(*names(), *context.get(context.run(names)))

    named, extra = (wheel(tmp_path, f"by_{how}_for_a_test") for how in ("name", "extra"))
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "pyproject.toml").write_text(
        '[project]\nname = "sample"\nversion = "1"\nrequires-python = ">=3.11"\n'
        "[project.optional-dependencies]\n"
        f'more = ["by-extra-for-a-test @ {served}/{extra.name}"]\n'
    )
    environment = create_environment(workspace=workspace, pip_packages=[str(named)], extras=["more"])
    request = JobRequest(
        "packages", work, environment=environment, resources=ResourceConfig(preemptible=False)
    )
    info = cluster.wait(cluster.launch(request), timeout=400)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    (line,) = cluster.monitor(info.job_id)
    assert line.split() == 2 * ["by_name_for_a_test", "by_extra_for_a_test"]


def test_a_package_that_does_not_exist_is_named_in_the_first_line_of_the_error(cluster: RayCluster) -> None:
    name = "fray-no-such-package"
    environment = create_environment(pip_packages=[f"{name}==0+none"])  # no index takes a local version
    info = run(cluster, Entrypoint.from_binary("true"), environment=environment)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.COULD_NOT_START)
    first, *others = (info.error_message or "").splitlines()
    assert "its environment could not be built: " in first, info.error_message
    assert name in first, info.error_message
    assert others, "the output of what was to install it"


def test_a_workspace_is_shipped_when_asked(ray_cluster: LocalRayCluster, tmp_path: Path) -> None:
    (tmp_path / "shipped_module.py").write_text(
        "import os, pathlib\nprint(os.getcwd())\nprint(pathlib.Path('data.txt').read_text())"
    )
    (tmp_path / "data.txt").write_text("came along")
    cluster = RayCluster(ray_cluster.address, ship_workspace=True)
    info = run(cluster, "shipped_module", environment=create_environment(workspace=tmp_path))
    folder, text = cluster.monitor(info.job_id)
    assert text == "came along"
    assert folder != str(tmp_path)


def test_a_workspace_that_is_too_large_is_refused_with_what_to_do(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    (tmp_path / "large.bin").write_bytes(os.urandom(101 * 2**20))
    cluster = RayCluster(ray_cluster.address, ship_workspace=True)
    request = JobRequest("large", "module", environment=create_environment(workspace=tmp_path))
    with pytest.raises(ValueError, match=r"100 MiB.*\.rayignore"):
        cluster.launch(request)
    (tmp_path / ".rayignore").write_text("large.bin\n")
    cluster.terminate(cluster.launch(request))


@pytest.mark.parametrize("git", [False, True], ids=["a folder", "a repository"])
def test_a_job_that_has_waited_in_its_workspace_warns_of_what_changed_meanwhile(
    cluster: RayCluster, driver: None, tmp_path: Path, git: bool
) -> None:
    workspace, gate = tmp_path / "workspace", Gate(tmp_path / "gate")
    workspace.mkdir()
    (workspace / "train.py").write_text("print('one')")
    (workspace / "same.py").touch()
    if git:
        for command in ("init -q", "add .", "-c user.name=t -c user.email=t@example.org commit -q -m first"):
            subprocess.run(["git", *command.split()], cwd=workspace, check=True)
    waits = Entrypoint.from_binary("sh", ["-c", f"until test -e {gate.path}; do sleep 0.05; done"])
    first = cluster.launch(JobRequest("first", waits))
    environment = create_environment(workspace=workspace)
    job_id = cluster.launch(JobRequest("waits", "train", environment=environment, after=[first]))
    launched = time.time()
    until(lambda: time.time() > launched + 1.5, "it has waited")
    (workspace / "train.py").write_text("print('two')")
    gate.open()
    until(lambda: cluster.poll(job_id).started_at, "it has begun")
    kill_scheduler()  # the next one knows it, too
    info = cluster.wait(job_id, timeout=200)
    assert list(cluster.monitor(job_id)) == ["two"]
    (warning,) = info.warnings
    assert "files changed between launch and start: train.py;" in warning
    assert not cluster.poll(first).warnings


def test_an_entry_point_that_is_too_large_is_refused_with_its_size(cluster: RayCluster) -> None:
    with pytest.raises(ValueError, match=r"10[1-9] MiB"):
        cluster.launch(JobRequest("large", Entrypoint.from_callable(len, [bytes(105 * 2**20)])))


def test_seed_000_resources_and_environment_of_a_request_go_to_ray_remote(
    cluster: RayCluster, ray_cluster: LocalRayCluster, driver: None, tmp_path: Path
) -> None:
    tpu_request = JobRequest(
        name="tpu-training",
        entrypoint="train",
        resources=ResourceConfig(cpu=96, ram="512g", device=TpuConfig(type="v5e-16", count=8)),
        environment=create_environment(workspace=tmp_path, env_vars={"WANDB_API_KEY": "your-key"}),
    )
    runtime_env = cluster.get_runtime_env(tpu_request)
    resources = cluster.get_ray_resources(tpu_request)
    assert resources == {"TPU": 8}
    node = ray_cluster.add_node(num_cpus=1, resources={"TPU": 8})

    @ray.remote(runtime_env=runtime_env, resources=resources)  # type: ignore[untyped-decorator]
    def train_model() -> str:
        return os.environ["WANDB_API_KEY"]

    assert ray.get(train_model.remote(), timeout=200) == "your-key"
    ray_cluster.kill_node(node)


def test_seeds_001_and_003_jobs_by_the_older_face(
    ray_cluster: LocalRayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("print('ran')")

    def my_job(ctx: Any) -> None:
        refs = [ctx.create_task(lambda x: x**2, i) for i in range(3)]
        print(f"Results: {ctx.get(refs)}")

    cluster = RayClusterContext(dashboard_address=ray_cluster.dashboard)
    commanded = cluster.create_job("python script.py", env=RuntimeEnv(env={"A": "1"}))
    called = cluster.create_job(my_job, RuntimeEnv())
    infos = cluster.cluster.wait([commanded, called], timeout=200)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 2
    assert list(cluster.cluster.monitor(called)) == ["Results: [0, 1, 4]"]
    listed = {job["id"]: job for job in cluster.list_jobs()}
    assert listed[commanded]["status"] == "SUCCEEDED"
    assert listed[commanded]["submission_time"] > 0
    stopped = cluster.create_job("sleep 600")
    cluster.delete_job(stopped)
    assert next(job for job in cluster.list_jobs() if job["id"] == stopped)["status"] == "STOPPED"


def test_what_a_program_uses_that_has_closed_its_output_is_known_while_it_runs(
    cluster: RayCluster, tmp_path: Path
) -> None:
    script = "exec >&- 2>&-; until test -e $0; do sleep 0.05; done"
    job_id = cluster.launch(
        JobRequest("silent", Entrypoint.from_binary("sh", ["-c", script, str(tmp_path / "gate")]))
    )
    until(lambda: cluster.usage(job_id), "there is a sample", 120)
    assert cluster.poll(job_id).status is JobStatus.RUNNING
    (tmp_path / "gate").touch()
    assert cluster.wait(job_id, timeout=120).status is JobStatus.SUCCEEDED


def test_a_sweep_of_many_members_and_a_long_command_line_start(cluster: RayCluster) -> None:
    """Ray passes what describes a job on in one variable, for which Linux has 128 KiB."""
    count = 3_000
    rates = [f"{number / 7:.12f}" for number in range(count)]
    requests = [
        JobRequest(f"train lr={rate}", Entrypoint.from_binary("true"), labels={"lr": rate}) for rate in rates
    ]
    sweep = cluster.launch_many(requests, max_parallel=2)
    until(lambda: (cluster.poll(sweep).progress or {}).get("succeeded", 0) > 0, "its members start", 200)
    last = cluster.poll(sweep.member(count - 1))
    assert (last.name, last.labels, last.status) == (f"train lr={rates[-1]}", {"lr": rates[-1]}, "pending")
    assert len(cluster.list_jobs(parent=sweep)) == count
    cluster.terminate(sweep, grace=0.0)
    names = [f"part-{number:06}.parquet" for number in range(20_000)]
    info = run(cluster, Entrypoint.from_binary("true", names))
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert info.command is not None
    assert info.command.startswith("true part-000000.parquet")
    assert info.command.endswith("part-019999.parquet")
