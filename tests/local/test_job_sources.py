"""What a job runs, what it used, and its environment: as its user sees them on this machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fray import UnsupportedError
from fray.cluster import (
    Entrypoint,
    ExitReason,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_environment,
)
from fray.testing.cluster import launch, program, until
from fray_local import LocalCluster
from fray_local.testing import preempt


@pytest.fixture
def cluster() -> LocalCluster:
    return LocalCluster(cpus=1, memory="8g")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "train.py").write_text("print('one')")
    return folder


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run(cluster: LocalCluster, workspace: Path, **fields: bool) -> JobInfo:
    """Launch a job that waits for room, change its source meanwhile, and let it run."""
    holder = launch(cluster, program("import time; time.sleep(600)"))
    until(lambda: cluster.poll(holder).status is JobStatus.RUNNING, "the machine is full")
    request = JobRequest(
        "waits",
        Entrypoint.from_binary("python", ["train.py"]),
        environment=create_environment(workspace=workspace),
        **fields,  # type: ignore[arg-type]
    )
    job_id = cluster.launch(request)
    until(lambda: "waiting for" in (cluster.poll(job_id).pending_reason or ""), "it waits")
    time.sleep(0.3)  # beyond what counts as at once
    (workspace / "train.py").write_text("print('two')")
    cluster.terminate(holder, grace=0.0)
    return cluster.wait(job_id, timeout=60)


def test_a_job_that_waited_warns_of_what_changed_meanwhile(cluster: LocalCluster, workspace: Path) -> None:
    info = run(cluster, workspace)
    assert list(cluster.monitor(info.job_id)) == ["two"]
    (warning,) = info.warnings
    assert "files changed between launch and start: train.py;" in warning


def test_a_snapshot_that_waited_runs_what_was_launched(cluster: LocalCluster, workspace: Path) -> None:
    info = run(cluster, workspace, snapshot=True)
    assert list(cluster.monitor(info.job_id)) == ["one"]
    assert info.warnings == ()
    assert info.directory == os.fspath(workspace)


def test_a_job_knows_its_commit_and_whether_there_were_changes(
    cluster: LocalCluster, workspace: Path
) -> None:
    git(workspace, "init", "-q")
    git(workspace, "add", ".")
    git(workspace, "commit", "-qm", "first")
    environment = create_environment(workspace=workspace)
    clean = cluster.wait(launch(cluster, Entrypoint.from_binary("true"), environment=environment), timeout=60)
    assert (clean.commit, clean.dirty) == (git(workspace, "rev-parse", "HEAD"), False)
    (workspace / "train.py").write_text("changed")

    def dirty() -> bool:  # what git said is believed for a second
        job_id = launch(cluster, Entrypoint.from_binary("true"), environment=environment)
        info = cluster.wait(job_id, timeout=60)
        assert info.commit == clean.commit
        return bool(info.dirty)

    until(dirty, "git is asked again")


def test_a_callable_of_a_snapshot_imports_from_the_copy(
    cluster: LocalCluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "copied_module.py").write_text("VALUE = 'as it was'")
    monkeypatch.setattr(sys, "path", [os.fspath(workspace / "src"), *sys.path])
    go = tmp_path / "go"

    def show() -> None:
        import time

        while not go.exists():
            time.sleep(0.01)
        import copied_module  # type: ignore[import-not-found]

        print(copied_module.VALUE)

    environment = create_environment(workspace=workspace)
    job_id = cluster.launch(JobRequest("callable", show, environment=environment, snapshot=True))
    (workspace / "src" / "copied_module.py").write_text("VALUE = 'as it is'")
    go.touch()
    assert list(cluster.monitor(job_id)) == ["as it was"]


def test_a_callable_of_a_snapshot_imports_from_the_copy_though_a_link_leads_to_its_workspace(
    cluster: LocalCluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "linked_module.py").touch()
    (tmp_path / "link").symlink_to(workspace)
    monkeypatch.setattr(sys, "path", [os.fspath(workspace / "src"), *sys.path])

    def show() -> None:
        from pathlib import Path

        import linked_module  # type: ignore[import-not-found]

        print(Path(linked_module.__file__).samefile("src/linked_module.py"))

    environment = create_environment(workspace=tmp_path / "link")
    job_id = cluster.launch(JobRequest("callable", show, environment=environment, snapshot=True))
    assert list(cluster.monitor(job_id)) == ["True"]


def test_a_relative_import_path_is_one_from_the_copy(
    cluster: LocalCluster, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("src", "below/src"):
        (workspace / folder).mkdir(parents=True)
        (workspace / folder / "which.py").write_text(f"VALUE = {folder!r}")
    monkeypatch.chdir(workspace / "below")
    environment = create_environment(workspace=workspace, env_vars={"PYTHONPATH": "src"})
    job_id = launch(
        cluster, program("import which; print(which.VALUE)"), environment=environment, snapshot=True
    )
    assert list(cluster.monitor(job_id)) == ["src"]


def test_a_job_that_runs_a_snapshot_launches_another_of_it(workspace: Path) -> None:
    def parent() -> None:
        from fray.cluster import Entrypoint, JobRequest, current_cluster

        request = JobRequest("child", Entrypoint.from_binary("python", ["train.py"]), snapshot=True)
        print(*current_cluster().monitor(current_cluster().launch(request)))

    cluster = LocalCluster(cpus=4)
    environment = create_environment(workspace=workspace)
    job_id = cluster.launch(JobRequest("parent", parent, environment=environment, snapshot=True))
    assert list(cluster.monitor(job_id)) == ["one"]


def test_records_in_the_workspace_are_no_change_of_its_source(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAY_STATE_DIR", os.fspath(workspace / "state"))
    cluster = LocalCluster(cpus=1, memory="8g")
    info = run(cluster, workspace)
    assert list(cluster.monitor(info.job_id)) == ["two"]
    (warning,) = info.warnings
    assert "files changed between launch and start: train.py;" in warning


def test_a_source_file_that_is_named_in_no_utf_8_is_named_in_the_warning(
    cluster: LocalCluster, workspace: Path
) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    (workspace / "train.py").rename(workspace / name)
    (workspace / "train.py").symlink_to(name)
    info = run(cluster, workspace)
    (warning,) = info.warnings
    assert "start: caf\\xe9.py" in warning


def test_a_job_that_used_more_memory_than_it_asked_for_says_so(cluster: LocalCluster) -> None:
    code = "data = b'x' * 300_000_000; import time; time.sleep(0.1)"
    info = cluster.wait(launch(cluster, program(code), resources=ResourceConfig(ram="64m")), timeout=60)
    assert info.status is JobStatus.SUCCEEDED
    (task,) = info.tasks
    assert 300e6 < (task.peak_memory or 0) < 600e6
    (warning,) = info.warnings
    assert "asked 64 MiB, used " in warning


def test_native_options_of_this_cluster_are_refused_and_those_for_others_are_not(
    cluster: LocalCluster,
) -> None:
    options = {"local": {"nice": 5}, "slurm": {"partition": "a"}}
    with pytest.raises(UnsupportedError, match=r"LocalCluster has no native options.*'job' has nice"):
        launch(cluster, program("pass"), backend=options)
    job_id = launch(cluster, program("pass"), backend={"slurm": {"partition": "a"}})
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED


def test_memory_is_limited_where_the_machine_lets_us_and_else_refused() -> None:
    cluster = LocalCluster(enforce_memory=True)
    greedy = program("data = b'x' * 500_000_000")
    if not cluster.capabilities.enforced_memory:
        with pytest.raises(UnsupportedError, match="does not let the memory of job 'job' be limited"):
            launch(cluster, greedy, resources=ResourceConfig(ram="200m"))
        assert cluster.list_jobs() == []
        return
    info = cluster.wait(launch(cluster, greedy, resources=ResourceConfig(ram="200m")), timeout=60)
    assert [task.reason for task in info.tasks] == [ExitReason.OUT_OF_MEMORY]


def test_what_a_child_used_is_counted_while_it_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    code = """
        import os, subprocess, sys, time
        child = "import sys; data = b'x' * 200_000_000; sys.stdin.read()"
        command = [sys.executable, "-c", child]
        children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    """
    go = tmp_path / "go"
    job_id = launch(cluster, program(code, go))
    until(lambda: any(sample.memory > 400e6 for sample in cluster.usage(job_id)), "both are counted", 60.0)
    go.touch()
    info = cluster.wait(job_id, timeout=60)
    assert info.status is JobStatus.SUCCEEDED
    assert (info.tasks[0].peak_memory or 0) > 400e6


def test_every_attempt_has_its_own_usage(cluster: LocalCluster) -> None:
    job_id = launch(cluster, program("raise SystemExit(1)"), max_retries_failure=1)
    (task,) = cluster.wait(job_id, timeout=60).tasks
    assert [bool(each.cpu_time and each.peak_memory) for each in (*task.previous, task)] == [True, True]


def test_a_replica_learns_that_its_host_goes(tmp_path: Path) -> None:
    cluster = LocalCluster(simulate="tpu", cpus=4)
    saved = tmp_path / "saved"

    def train() -> None:
        import pathlib
        import signal

        from fray.job import preemption_notice

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(f"{saved}.up").touch()
        notice = preemption_notice()
        if notice.wait(60):
            saved.write_text(f"{notice.is_set()} {notice.seconds_left}")

    resources = ResourceConfig.with_tpu("v5litepod-4")
    job_id = launch(cluster, train, resources=resources, max_retries_preemption=0)
    until(Path(f"{saved}.up").exists, "the replica is up")
    preempt(job_id, grace=30.0, cluster=cluster)
    told, left = saved.read_text().split()
    assert told == "True"
    assert 0 < float(left) <= 30
    cluster.terminate(job_id, grace=0.0)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_replica_that_checks_its_notice_needs_no_handler_and_can_be_stopped(
    tmp_path: Path, noticed: bool
) -> None:
    cluster = LocalCluster(simulate="tpu", cpus=4)
    up, saved = tmp_path / "up", tmp_path / "saved"

    def train() -> None:
        import multiprocessing
        import time

        from fray.job import preemption_notice

        notice = preemption_notice()
        loader = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        loader.start()
        up.touch()
        while not notice.is_set():
            time.sleep(0.01)
        saved.touch()
        loader.terminate()  # which has a copy of the handler
        loader.join()

    job_id = launch(
        cluster, train, resources=ResourceConfig.with_tpu("v5litepod-4"), max_retries_preemption=0
    )
    until(up.exists, "the replica is up")
    started = time.monotonic()
    if noticed:
        preempt(job_id, grace=120.0, cluster=cluster)
    else:
        cluster.terminate(job_id, grace=120.0)
    assert time.monotonic() - started < 60, "it ended by itself, not when its time was up"
    assert saved.exists() == noticed


def test_children_and_keys_of_a_job_are_its_own(cluster: LocalCluster) -> None:
    def parent() -> None:
        from fray.cluster import Entrypoint, JobRequest, current_cluster

        request = JobRequest("child", Entrypoint.from_binary("true"))
        ids = {current_cluster().launch(request, key="rollout") for _ in range(3)}
        print(len(ids), current_cluster().wait(ids.pop()).status)

    cluster = LocalCluster(cpus=4)
    ids = [launch(cluster, parent) for _ in range(2)]
    children: list[str] = []
    for info in cluster.wait(ids, timeout=60):
        assert list(cluster.monitor(info.job_id)) == ["1 succeeded"]
        children += cluster.poll(info.job_id).children
    assert len(set(children)) == 2
