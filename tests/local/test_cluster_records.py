"""What is on disk: readable with plain tools, by its owner only, and not for ever."""

import contextlib
import errno
import itertools
import json
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fray import FrayError, JobNotFoundError, SerializationError
from fray.backend import Supervision, dumps, environment_of, memory_bytes, oom_kills
from fray.cluster import (
    Cluster,
    Entrypoint,
    EnvironmentConfig,
    JobId,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
    create_environment,
    current_cluster,
    use_cluster,
)
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_faults import unshares
from fray.testing.cluster_fixtures import numbers_in
from fray_local import LocalCluster
from fray_local.testing import AdmissionFile

SECRET = "hunter2-hunter2-hunter2"


def test_a_record_reads_with_plain_tools(state_dir: Path) -> None:
    cluster = LocalCluster(cpus=4)
    job_id = launch(
        cluster,
        program("print('hello'); raise SystemExit(2)"),
        resources=ResourceConfig(replicas=2),
        max_retries_failure=1,
    )
    cluster.wait(job_id, timeout=30)
    record = state_dir / "jobs" / job_id
    assert json.loads((record / "request.json").read_text())["version"] == 2
    status = json.loads((record / "status.json").read_text())
    assert (status["version"], status["status"]) == (2, "failed")
    logs = {path.name: path.read_text() for path in (record / "logs").iterdir()}
    assert logs == {
        f"replica-{replica}.attempt-{attempt}.log": "hello\n" for replica in (0, 1) for attempt in (1, 2)
    }
    assert (record / "supervisor.log").read_text() == ""
    assert not [path for path in record.rglob("*") if path.suffix == ".new"]


def test_a_secret_is_in_no_file_and_no_message_and_nothing_is_readable_by_others(
    state_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    umask = os.umask(0)
    try:
        cluster = LocalCluster()
        code = f"import os; assert os.environ['TOKEN'] == {SECRET[::-1]!r}[::-1]; raise SystemExit(1)"
        environment = create_environment(env_vars={"TOKEN": SECRET})
        job_id = launch(cluster, program(code), environment=environment)
        info = cluster.wait(job_id, timeout=30, stream_logs=True)
        failing = launch(
            cluster, program("import os; print(os.environ['TOKEN']); 1 / 0"), environment=environment
        )
        told = cluster.wait(failing, timeout=30).error_message
    finally:
        os.umask(umask)
    assert info.status is JobStatus.FAILED
    # A job may print its own secret into its own log; nobody copies it from there.
    assert told is not None
    assert "***" in told
    assert SECRET not in told
    own_log = state_dir / "jobs" / failing / "logs" / "replica-0.attempt-1.log"
    texts, modes = {}, {state_dir: state_dir.stat().st_mode}
    for path in (Path(place, name) for place, below, names in os.walk(state_dir) for name in below + names):
        with contextlib.suppress(FileNotFoundError):  # a supervisor removes what it needs no more
            modes[path] = path.lstat().st_mode
            if path.is_file() and path != own_log:
                texts[path] = path.read_text(errors="replace")
    assert len(texts) > 10
    assert [path for path, text in texts.items() if SECRET in text] == []
    assert [path for path, mode in modes.items() if stat.S_IMODE(mode) & 0o077] == []
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in repr(environment)
    assert SECRET not in repr(cluster.list_jobs())


def finished(cluster: LocalCluster, name: str = "job") -> JobId:
    """Run a job, and wait until nothing of it is at work any more."""
    job_id = launch(cluster, Entrypoint.from_binary("true"), name)
    cluster.wait(job_id, timeout=30)
    until(lambda: not job_is_alive(job_id), "the guardian of its supervisor ends")
    return job_id


def job_is_alive(job_id: str) -> bool:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return any(environment_of(pid).get("FRAY_JOB_DIR", "").endswith(f"/{job_id}") for pid in pids)


def test_old_records_are_pruned_and_never_those_of_running_jobs(state_dir: Path) -> None:
    cluster = LocalCluster(keep_jobs=2, overcommit=True)
    running = launch(cluster, program("import time; time.sleep(600)"), "running")
    until(lambda: cluster.poll(running).status is JobStatus.RUNNING, "the job starts")
    done = [finished(cluster, f"job{number}") for number in range(5)]
    assert [info.job_id for info in cluster.list_jobs()] == [running, *done[-2:]]
    with pytest.raises(JobNotFoundError, match="job0"):
        cluster.poll(done[0])
    assert not [path for path in (state_dir / "jobs").glob(".*") if path.is_dir()]
    cluster.terminate(running, grace=0.0)


def age(state: Path, job_id: str, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(state / "jobs" / job_id / "status.json", (then, then))


def an_hour_passes(state: Path) -> None:
    notes = state / "jobs" / ".pruning.json"
    data = json.loads(notes.read_text())
    noted = {name: then - 3601 for name, then in data["noted"].items()}
    notes.write_text(json.dumps({"looked": data["looked"] - 3601, "noted": noted}))
    os.utime(notes, (time.time() - 3601, time.time() - 3601))


def test_records_older_than_asked_for_are_pruned_once_two_looks_agree(state_dir: Path) -> None:
    cluster = LocalCluster(keep_days=2)
    old = finished(cluster)
    age(state_dir, old, 3)
    an_hour_passes(state_dir)
    first = finished(cluster)
    assert {info.job_id for info in cluster.list_jobs()} == {old, first}
    an_hour_passes(state_dir)
    second = finished(cluster)
    assert {info.job_id for info in cluster.list_jobs()} == {first, second}


def test_a_clock_that_was_wrong_once_deletes_nothing(state_dir: Path) -> None:
    cluster = LocalCluster(keep_days=2)
    job_id = finished(cluster)
    notes = state_dir / "jobs" / ".pruning.json"
    # A look was taken while the clock was a year ahead, by which the record was too old.
    ahead = time.time() + 365 * 86400
    notes.write_text(json.dumps({"looked": ahead, "noted": {job_id: ahead}}))
    os.utime(notes, (ahead, ahead))
    other = finished(cluster)
    assert {info.job_id for info in cluster.list_jobs()} == {job_id, other}
    # And one ran while it stood in 1970.
    age(state_dir, other, 20000)
    an_hour_passes(state_dir)
    last = finished(cluster)
    assert {info.job_id for info in cluster.list_jobs()} == {job_id, other, last}


def test_of_records_from_a_time_with_a_clock_far_ahead_those_that_end_now_are_the_newest(
    state_dir: Path,
) -> None:
    cluster = LocalCluster(keep_jobs=2)
    for _ in range(2):
        age(state_dir, finished(cluster), -365)
    done = [finished(cluster) for _ in range(3)]
    assert [info.job_id for info in cluster.list_jobs()] == done[-2:]


def test_what_a_killed_launcher_left_half_made_is_pruned(state_dir: Path) -> None:
    cluster = LocalCluster()
    finished(cluster)
    draft = state_dir / "jobs" / ".new-job-abcdef"
    draft.mkdir()
    (draft / "lock").write_bytes(b" " * 1024)
    finished(cluster)
    an_hour_passes(state_dir)
    finished(cluster)
    assert draft.exists()  # its launcher may be on another host, where the file system keeps locks by host
    long_ago = time.time() - 7200
    os.utime(draft, (long_ago, long_ago))
    an_hour_passes(state_dir)
    finished(cluster)
    assert not draft.exists()


def test_a_launch_that_takes_hours_is_not_pruned_meanwhile(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster()
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "train.py").write_text("print('copied')")
    copy2 = shutil.copy2

    def slowly(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(shutil, "copy2", copy2)
        (draft,) = (state_dir / "jobs").glob(".new-*")
        hours_ago = time.time() - 7200
        os.utime(draft, (hours_ago, hours_ago))
        finished(cluster)
        an_hour_passes(state_dir)
        finished(cluster)
        return copy2(*args, **kwargs)

    monkeypatch.setattr(shutil, "copy2", slowly)
    request = JobRequest(
        "copied",
        Entrypoint.from_binary("python", ["train.py"]),
        environment=create_environment(workspace=workspace),
        snapshot=True,
    )
    assert list(cluster.monitor(cluster.launch(request))) == ["copied"]


def test_a_record_is_removed_with_what_its_job_made_read_only(tmp_path: Path) -> None:
    code = """
        import ctypes, os
        from fray.cluster import Entrypoint, JobRequest, create_cluster
        from fray.testing.cluster import until

        jobs = os.path.join(os.environ["FRAY_STATE_DIR"], "jobs")
        for capability in 1, 2:  # of root, to whom no folder is closed: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
        if os.getuid() == 0 and "DROPPED" not in os.environ:
            os.execve(sys.executable, sys.orig_argv, os.environ | {"DROPPED": "1"})
        made = "import os; os.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a/b', 0); os.chmod('a', 0o555)"
        cluster = create_cluster("local")
        request = JobRequest("job", Entrypoint.from_binary("python", ["-c", made]), snapshot=True)
        job_id = cluster.launch(request)
        assert cluster.wait(job_id, timeout=60).status == "succeeded"
        cluster.remove(job_id)
        assert [name for name in os.listdir(jobs) if not name.startswith(".pruning")] == []

        job_id = cluster.launch(request)
        assert cluster.wait(job_id, timeout=60).status == "succeeded"
        until(lambda: not cluster.record(job_id).alive(), "the supervisor ends")
        os.chmod(jobs, 0o500)
        try:
            cluster.remove(job_id)
        except PermissionError as error:
            assert "cannot be removed" in str(error)
        else:
            raise AssertionError("it was said to be removed")
        assert cluster.prune().jobs == ()
        os.chmod(jobs, 0o700)
        assert cluster.prune().jobs == (job_id,)
    """
    script = f"import sys\n{textwrap.dedent(code)}"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
    assert [path for path in (tmp_path / "state" / "jobs").iterdir() if path.is_dir()] == []


def test_several_prune_at_once_and_each_says_what_it_removed(state_dir: Path) -> None:
    cluster = LocalCluster()
    job_id = finished(cluster)
    record = state_dir / "jobs" / job_id
    copies = [record.with_name(f"job-{number:06x}") for number in range(150)]
    for each in copies:
        subprocess.run(["cp", "-a", record, each], check=True)
    code = "import json; from fray_local import LocalCluster; print(json.dumps(LocalCluster().prune().jobs))"
    command = [sys.executable, "-c", code]
    pruning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    removed = [json.loads(each.communicate(timeout=120)[0]) for each in pruning]
    assert sorted(itertools.chain(*removed)) == sorted(path.name for path in (record, *copies))


def test_a_call_that_cannot_be_pickled_is_named_and_nothing_starts(state_dir: Path) -> None:
    cluster = LocalCluster()
    lock = threading.Lock()

    def holds_a_lock() -> None:
        with lock:
            pass

    with pytest.raises(SerializationError, match="holds_a_lock"):
        launch(cluster, holds_a_lock)
    assert not (state_dir / "jobs").exists()


@pytest.mark.parametrize(
    ("owner", "step"),
    [(AdmissionFile, "enter"), (Path, "rename"), (pickle, "dumps")],
    ids=["the admission", "the record", "the plan"],
)
def test_a_launch_that_fails_late_leaves_nothing(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    cluster, ran = LocalCluster(cpus=1), tmp_path / "ran"
    assert cluster.wait(launch(cluster, program("pass"), "before"), timeout=30).exit_code == 0
    before = cluster.list_jobs()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, full)
        with pytest.raises(OSError, match="No space left"):
            launch(cluster, program("import sys; open(sys.argv[1], 'w')", ran))
    assert cluster.list_jobs() == before
    assert len([path for path in (state_dir / "jobs").iterdir() if path.is_dir()]) == 1
    assert not AdmissionFile(str(state_dir)).claims()
    assert cluster.wait(launch(cluster, program("pass")), timeout=30).exit_code == 0
    assert not ran.exists()


def test_a_callable_imports_what_its_launcher_can_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_script.py").write_text("def answer():\n    print('from beside')\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside_the_script  # type: ignore[import-not-found]

    cluster = LocalCluster()
    job_id = launch(cluster, beside_the_script.answer)
    assert cluster.wait(job_id, timeout=30).error_message is None
    assert list(cluster.monitor(job_id)) == ["from beside"]


def test_the_traceback_of_a_callable_begins_at_the_callable() -> None:
    def fail() -> None:
        raise ValueError("boom")

    cluster = LocalCluster()
    job_id = launch(cluster, fail)
    message = cluster.wait(job_id, timeout=30).error_message
    assert message is not None
    assert "_runner.py" not in message
    assert message.endswith("ValueError: boom")


def test_a_job_finds_the_cluster_and_the_context_that_were_chosen_for_it() -> None:
    cluster = LocalCluster(context="sync", cpus=3)
    code = """
        from fray import current_cluster, get_job_context
        print(current_cluster().spec, type(get_job_context()).__name__)
    """
    job_id = launch(cluster, program(code))
    assert list(cluster.monitor(job_id)) == ["local?context=sync&cpus=3 SyncContext"]


def test_a_job_inherits_the_variables_of_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_CONTEXT_SPEC", "sync")
    monkeypatch.setenv("COLOUR", "blue")
    cluster = LocalCluster()
    code = "import os; print(*(os.environ[name] for name in ('FRAY_CONTEXT_SPEC', 'COLOUR', 'SHAPE')))"
    job_id = launch(cluster, program(code), environment=create_environment(env_vars={"SHAPE": "round"}))
    assert list(cluster.monitor(job_id)) == ["sync blue round"]
    winning = launch(
        cluster, program(code), environment=create_environment(env_vars={"COLOUR": "red", "SHAPE": ""})
    )
    assert list(cluster.monitor(winning)) == ["sync red "]


def test_the_spec_opens_the_same_cluster() -> None:
    cluster = create_cluster("local?cpus=2&overcommit=true", gpus=1)
    assert isinstance(cluster, Cluster)
    assert isinstance(cluster, LocalCluster)
    assert cluster.spec == "local?overcommit=true&cpus=2&gpus=1"
    assert repr(create_cluster(cluster.spec)) == repr(cluster)
    assert isinstance(current_cluster(), LocalCluster)
    with use_cluster(cluster):
        assert current_cluster() is cluster


# Beside what a bare interpreter has. `signal` imports `enum`, and that the next seven; only `ctypes`
# calls `prctl`, and `_pickle` is the half of `pickle` that is written in C.
NEEDED_TO_START = {
    *("os", "os.path", "posixpath", "stat", "genericpath", "gc", "errno", "fcntl", "select", "signal"),
    *("enum", "types", "functools", "collections", "itertools", "keyword", "operator", "reprlib"),
    *("ctypes", "ctypes._endian", "struct", "copyreg"),
    "warnings",  # of os.execvpe, in the process of the replica
}
AT_EXEC = """if 1:
    import sys
    def note(event, args):
        if event == "os.exec":
            with open({!r}, "w") as file:
                file.write(" ".join(sys.modules))
    sys.addaudithook(note)
"""


def test_a_supervisor_loads_little_before_its_replica_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its imports are most of what a launch costs: each module that comes to this list costs every job."""
    seen, watch, python = tmp_path / "modules", tmp_path / "watch.py", tmp_path / "python"
    watch.write_text(AT_EXEC.format(str(seen)))
    # In place of the interpreter: the same one, that notes in the process of a replica what it has there.
    python.write_text(
        f'''#!/bin/sh
code="exec(open('{watch}').read()); $4"; flags="$1 $2 $3"; shift 4
exec "{sys.executable}" $flags "$code" "$@"
'''
    )
    python.chmod(0o700)
    bare = subprocess.run([sys.executable, "-ISc", "import sys; print(*sys.modules)"], capture_output=True)
    monkeypatch.setattr(sys, "executable", str(python))
    cluster = LocalCluster()
    cluster.wait(launch(cluster, Entrypoint.from_binary("true")), timeout=30, raise_on_failure=True)
    loaded = set(seen.read_text().split())
    ours = {name for name in loaded if name.startswith("fray")}
    assert Supervision.__module__ in ours
    needless = ("fray_", "fray.backend", dumps.__module__.rpartition(".")[0])
    assert not {name for name in ours if name.startswith(needless)}
    others = {name for name in loaded - ours if not name.startswith("_")}
    assert others - set(bare.stdout.decode().split()) - NEEDED_TO_START == set()


def test_a_timeout_does_not_count_what_was_spent_waiting_for_room(tmp_path: Path) -> None:
    cluster = LocalCluster(cpus=1)
    first = launch(cluster, program("import time; time.sleep(6)"))
    second = cluster.launch(JobRequest("second", Entrypoint.from_binary("true"), timeout=5.0))
    infos = cluster.wait([first, second], timeout=60)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 2


def test_a_kill_for_memory_is_read_where_the_system_counts_it(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "memory" / "jobs"
    group.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    assert oom_kills((), str(tmp_path / "proc"), str(tmp_path / "cgroup")) == 0
    (tmp_path / "proc" / "vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    assert oom_kills((), str(tmp_path / "proc"), str(tmp_path / "cgroup")) == 7
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/jobs\n0::/\n")
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills((), str(tmp_path / "proc"), str(tmp_path / "cgroup")) == 3
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/jobs\n")
    (tmp_path / "cgroup" / "jobs").mkdir()
    (tmp_path / "cgroup" / "jobs" / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert oom_kills((), str(tmp_path / "proc"), str(tmp_path / "cgroup")) == 1
    own = tmp_path / "own"
    own.mkdir()
    (own / "memory.events").write_text("oom 9\noom_kill 5\n")
    assert oom_kills([str(own)], str(tmp_path / "proc"), str(tmp_path / "cgroup")) == 5


def test_memory_is_limited_by_each_control_group_that_the_process_is_in(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    unit = groups / "system.slice" / "queues.service"
    unit.mkdir(parents=True)

    def found() -> int:
        return memory_bytes(str(proc), str(groups))

    machine = found()
    assert machine == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (proc / "self" / "cgroup").write_text("0::/system.slice/queues.service\n")
    (unit / "memory.max").write_text("max\n")
    assert found() == machine
    (unit.parent / "memory.max").write_text("20000000\n")
    assert found() == 20000000
    (unit / "memory.max").write_text("10000000\n")
    assert found() == 10000000
    (proc / "self" / "cgroup").write_text("4:memory:/docker/of-the-host\n0::/\n")
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert found() == machine
    (groups / "memory" / "memory.limit_in_bytes").write_text("30000000\n")
    assert found() == 30000000


def test_a_state_directory_that_was_open_is_closed_and_somebody_elses_is_refused(state_dir: Path) -> None:
    (state_dir / "jobs").mkdir(parents=True)
    for folder in (state_dir, state_dir / "jobs"):
        folder.chmod(0o777)
    cluster = LocalCluster()
    finished(cluster)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state_dir, state_dir / "jobs")] == [0o700] * 2
    if os.geteuid() == 0:  # who else can give a folder away
        os.chown(state_dir / "jobs", 65534, 65534)
        with pytest.raises(FrayError, match="belongs to user 65534, not to you"):
            launch(cluster, program("pass"))
        os.chown(state_dir / "jobs", 0, 0)


def test_records_of_0_1_0_are_read(state_dir: Path) -> None:
    task = {
        "replica": 0,
        "status": "succeeded",
        "attempt": 1,
        "exit_code": 0,
        "reason": "exited",
        "previous": [],
    }
    status = {"version": 1, "job_id": "old-aaaaaa", "name": "old", "status": "succeeded", "tasks": [task]}
    gone = {"pid": 1, "started": 1, "boot": "another boot"}
    for name, changes in (("old-aaaaaa", {}), ("cut-bbbbbb", {"status": "running"})):
        record = state_dir / "jobs" / name
        (record / "logs").mkdir(parents=True)
        (record / "logs" / "replica-0.attempt-1.log").write_text("hello\n")
        (record / "request.json").write_text('{"version": 1, "name": "old"}')
        (record / "status.json").write_text(json.dumps(status | changes | {"job_id": name, "name": name[:3]}))
        (record / "supervisor.json").write_text(json.dumps(gone))
    cluster = LocalCluster()
    infos = {info.name: info for info in cluster.list_jobs()}
    assert infos["old"].status is JobStatus.SUCCEEDED
    assert list(cluster.monitor("old-aaaaaa")) == ["hello"]
    assert (infos["cut"].status, cluster.poll("cut-bbbbbb").status) == (JobStatus.FAILED, JobStatus.FAILED)
    cluster.terminate("cut-bbbbbb")


def test_a_program_that_is_the_first_of_a_container_collects_its_supervisors(state_dir: Path) -> None:
    if not unshares("--pid", "--fork", "--mount-proc"):
        return
    code = """
import os, time
from fray.cluster import *
cluster = create_cluster("local")
assert os.getpid() == 1
cluster.wait([cluster.launch(JobRequest("job", Entrypoint.from_binary("true"))) for _ in range(3)])
deadline = time.monotonic() + 50
while children := open("/proc/self/task/1/children").read().split():
    assert time.monotonic() < deadline, children
    time.sleep(0.01)
print("alone")
"""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "alone\n", done.stderr


def test_a_thousand_records_are_listed_from_their_index_and_a_change_is_seen(state_dir: Path) -> None:
    cluster = LocalCluster(keep_jobs=5000)
    first = finished(cluster)
    source = state_dir / "jobs" / first
    for number in range(400):
        copy = state_dir / "jobs" / f"copy-{number:06x}"
        copy.mkdir()
        for name in ("status.json", "request.json"):
            text = (source / name).read_text()
            (copy / name).write_text(text.replace(f'"{first}"', f'"{copy.name}"'))
        (copy / "lock").write_text(json.dumps({"host": "n7", "boot": "another"}))  # where it ended
    last = finished(cluster)
    index, others = (state_dir / "jobs" / ".index.count").read_text().split()
    assert (int(index) + int(others), int(others) <= 1) == (402, True), (
        "without its writer's, which holds its lock"
    )
    assert {info.job_id for info in cluster.list_jobs()} >= {first, last, "copy-000000"}
    damaged = state_dir / "jobs" / "copy-000001" / "status.json"
    damaged.write_text("{")
    shutil.rmtree(state_dir / "jobs" / "copy-000002")
    infos = {str(info.job_id): info for info in cluster.list_jobs()}
    assert infos["copy-000001"].status is JobStatus.FAILED
    assert "copy-000002" not in infos
    assert infos["copy-000003"].status is JobStatus.SUCCEEDED
    assert len(infos) == 401


def test_jobs_that_wait_are_not_read_again_at_each_end_of_another(state_dir: Path) -> None:
    cluster, jobs = LocalCluster(), state_dir / "jobs"
    first = finished(cluster)
    status = json.loads((jobs / first / "status.json").read_text())

    def write(name: str, **changes: Any) -> None:
        (jobs / name).mkdir(exist_ok=True)
        text = json.dumps({**status, "job_id": name, **changes})
        (jobs / name / "status.json").write_text(text)

    names = [f"waits-{number:06x}" for number in range(400)]
    for name in names:
        write(name, status="pending", finished_at=None)
    index = jobs / ".index.pickle"
    finished(cluster)
    written = index.stat().st_ino
    finished(cluster)
    assert index.stat().st_ino == written
    for name in names:
        write(name)
    os.utime(jobs / ".index.count", (time.time() - 3600,) * 2)
    finished(cluster)
    assert index.stat().st_ino != written, "after a while it has those that have ended meanwhile"
    written = index.stat().st_ino
    os.utime(jobs / ".index.count", (time.time() - 3600,) * 2)
    finished(cluster)
    assert index.stat().st_ino == written, "they are in it"


def test_a_job_can_be_run_again_while_its_guardian_tidies_up(state_dir: Path, tmp_path: Path) -> None:
    cluster, go = LocalCluster(), tmp_path / "go"
    for number in range(201):
        (state_dir / "jobs" / f"copy-{number:06x}").mkdir(parents=True)
    slow = state_dir / "jobs" / "copy-000000" / "status.json"
    os.mkfifo(slow)  # who reads it to make an index waits until somebody writes
    job_id = launch(cluster, program("import os, sys; sys.exit(not os.path.exists(sys.argv[1]))", go))
    assert cluster.wait(job_id, timeout=30).status is JobStatus.FAILED
    go.touch()
    writer = until(lambda: _writer(slow), "its guardian reads")
    cluster.retry(job_id)
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED
    slow.unlink()
    os.close(writer)


def _writer(fifo: Path) -> int:
    """Open a FIFO that somebody reads; 0 where nobody does."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return 0


def test_several_processes_of_a_replica_register_one_name(state_dir: Path, tmp_path: Path) -> None:
    cluster, codes, gate = LocalCluster(), tmp_path / "codes", tmp_path / "gate"
    left = state_dir / "jobs" / ".endpoints" / "a.0.1.b.json.c.new"  # of one that was killed
    left.parent.mkdir(parents=True)
    left.touch()
    os.utime(left, (1.0, 1.0))
    code = """
        import os, sys, time
        from fray.job import register_endpoint
        for _ in range(4):
            if os.fork() == 0:
                for _ in range(20):
                    register_endpoint("ranks", "localhost:1")
                os._exit(0)
        print(sum(os.wait()[1] == 0 for _ in range(4)), file=open(sys.argv[1], "w"))
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
    """
    job_id = launch(cluster, program(code, codes, gate))
    assert until(lambda: numbers_in(codes), "all have registered", 60) == [4]
    assert [endpoint.name for endpoint in cluster.endpoints()] == ["ranks"]
    assert len(list(left.parent.iterdir())) == 1
    gate.touch()
    cluster.wait(job_id, timeout=30)


def test_a_state_home_that_is_not_absolute_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRAY_STATE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "elsewhere")
    monkeypatch.chdir(tmp_path)
    cluster = LocalCluster()
    first = launch(cluster, program("pass"))
    second = cluster.launch(JobRequest("second", program("pass"), after=[first]))
    assert cluster.wait(second, timeout=30).status is JobStatus.SUCCEEDED
    assert (tmp_path / ".local" / "state" / "fray" / "jobs" / second).is_dir()
    assert not (tmp_path / "elsewhere").exists()


def test_a_supervisor_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(cpus=1)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho a library is missing >&2\nexit 1\n")
    broken.chmod(0o700)
    # More than a pipe holds: the launch notices that nobody reads its plan.
    big = EnvironmentConfig(env_vars={"BIG": "x" * 300_000})
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", os.fspath(broken))
        said = r"job 'big-\w+' could not be started\nits last lines:\n  a library is missing"
        with pytest.raises(FrayError, match=said):
            cluster.launch(JobRequest("big", program("pass"), environment=big))
    assert cluster.list_jobs() == []
    job_id = launch(cluster, program("pass"), resources=ResourceConfig(cpu=1))
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED


def test_a_plan_that_signals_cut_into_pieces_arrives_whole() -> None:
    # A write into a full pipe returns when a handler has run, and has written a part.
    many = EnvironmentConfig(env_vars={f"BIG_{number}": "x" * 100_000 for number in range(12)})
    code = "import os; print(sum(map(len, (v for k, v in os.environ.items() if k.startswith('BIG_')))))"
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    timer = signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        cluster = LocalCluster()
        job_id = cluster.launch(JobRequest("big", program(code), environment=many))
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
    info = cluster.wait(job_id, timeout=30)
    assert info.status is JobStatus.SUCCEEDED, f"{info}"
    assert list(cluster.monitor(job_id)) == ["1200000"]
