"""What a launch and a job are made of: keys, snapshots, notices, usage. No cluster is needed."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray.backend import (
    ControlGroup,
    MemoryGroup,
    SourceState,
    SupervisorLock,
    UsageHistory,
    UsageMeter,
    change_since,
    held_key,
    in_words,
    kill_until_gone,
    limits_memory,
    over_asked,
    prune_keys,
    source_state,
    start_program,
    take_snapshot,
    wait_for_lock,
    workspace_files,
)
from fray.cluster import JobId
from fray.job import PreemptionNotice, preemption_notice
from fray.testing.gates import until


def test_a_key_is_held_by_one_launch_at_a_time_and_gives_the_first_id(tmp_path: Path) -> None:
    started: list[str] = []

    def launch(number: int) -> str:
        with held_key(tmp_path / "keys", "nightly", None, started.__contains__) as key:
            if key.job_id is not None:
                return key.job_id
            job_id = JobId(f"job-{number}")
            key.record(job_id)
            time.sleep(0.01)
            started.append(job_id)
            return job_id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(launch, range(32)))
    assert list(ids) == started
    assert len(started) == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ETIMEDOUT])
def test_a_heartbeat_that_the_file_system_refuses_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(file: int) -> None:
        raise OSError(number, os.strerror(number))

    lock = SupervisorLock.acquire(str(tmp_path / "lock"))
    assert lock is not None
    monkeypatch.setattr(os, "utime", refused)
    lock.renew()
    assert SupervisorLock.acquire(str(tmp_path / "lock")) is None
    lock.close()


def test_a_lock_whose_file_is_deleted_while_another_waits_is_that_of_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, waits = wait_for_lock(str(path)), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(wait_for_lock, str(path), waits.set)
        assert waits.wait(30)
        path.unlink()
        os.close(first)
        file = second.result(30)
    assert os.path.samestat(os.fstat(file), path.stat())
    os.close(file)


def test_a_key_whose_job_never_came_to_be_is_free(tmp_path: Path) -> None:
    with held_key(tmp_path, "k", None, lambda _: False) as key:
        key.record(JobId("crashed-1"))
    with held_key(tmp_path, "k", None, lambda _: False) as key:
        assert key.job_id is None
    with held_key(tmp_path, "k", None, lambda _: True) as key:
        assert key.job_id == "crashed-1"
    with held_key(tmp_path, "k", "parent-1", lambda _: True) as key:
        assert key.job_id is None


def test_keys_go_with_their_jobs_but_not_from_under_a_launch(tmp_path: Path) -> None:
    with held_key(tmp_path, "old", None, lambda _: True) as key:
        key.record(JobId("gone-1"))
    with held_key(tmp_path, "now", None, lambda _: True):
        prune_keys(tmp_path, lambda _: False)
        assert len(list(tmp_path.iterdir())) == 1
    prune_keys(tmp_path / "missing", lambda _: False)


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("*.log\n/out/\n")
    (folder / "train.py").write_text("one")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_snapshot_of_a_repository_has_what_git_does_not_ignore(repository: Path, tmp_path: Path) -> None:
    (repository / "new.py").write_text("untracked")
    (repository / "big.log").write_text("ignored")
    (repository / "out").mkdir()
    (repository / "out" / "weights").write_text("ignored")
    (repository / "link").symlink_to("train.py")
    (repository / "train.py").write_text("two")
    assert take_snapshot(repository, tmp_path / "copy") == 4
    copied = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert copied == [".gitignore", "link", "new.py", "train.py"]
    assert (tmp_path / "copy" / "train.py").read_text() == "two"
    assert (tmp_path / "copy" / "link").is_symlink()


def test_a_snapshot_of_a_folder_that_its_repository_ignores_has_its_files(repository: Path) -> None:
    folder = repository / "out" / "run"
    folder.mkdir(parents=True)
    assert workspace_files(folder) == []
    (folder / "train.py").write_text("mine")
    assert workspace_files(folder) == ["train.py"]


@pytest.mark.parametrize("target", ["elsewhere", "inside", "file"])
def test_a_snapshot_has_what_replaced_a_folder_of_the_repository(
    repository: Path, tmp_path: Path, target: str
) -> None:
    (repository / "data").mkdir()
    (repository / "data" / "a.csv").write_text("1")
    git(repository, "add", ".")
    (repository / "data").rename(repository / "real" if target == "inside" else tmp_path / "disk")
    match target:
        case "elsewhere":
            (repository / "data").symlink_to(tmp_path / "disk")
        case "inside":
            (repository / "data").symlink_to("real")
        case _:
            (repository / "data").write_text("2")
    take_snapshot(repository, tmp_path / "copy")
    copied = tmp_path / "copy" / "data"
    assert copied.is_symlink() == (target != "file")
    assert copied.is_file() or (copied / "a.csv").read_text() == "1"


def test_a_snapshot_of_a_repository_in_another_leaves_what_that_one_ignores(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "-q", "beside")
    (repository / "beside" / "big.log").write_text("ignored")
    os.mkfifo(repository / "beside" / "pipe")
    (repository / "beside" / "new.py").write_text("untracked")
    assert [name for name in workspace_files(repository) if name.startswith("beside")] == [
        "beside/.gitignore",
        "beside/new.py",
        "beside/train.py",
    ]
    assert take_snapshot(repository, tmp_path / "copy") == 5
    # As a folder without git above it: the file by which a worktree finds its repository stays behind.
    (repository / "beside").rename(tmp_path / "plain")
    assert ".git" not in workspace_files(tmp_path)


@pytest.mark.parametrize("in_git", [False, True])
def test_a_snapshot_takes_links_that_lead_nowhere_and_leaves_what_is_no_file(
    tmp_path: Path, in_git: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "around").symlink_to("around")
    (folder / "below").symlink_to("train.py/nothing")
    (folder / "nowhere").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    if in_git:
        git(folder, "init", "-q")
        (folder / "was").touch()
        git(folder, "add", ".")
        (folder / "was").unlink()
        os.mkfifo(folder / "was")
    assert take_snapshot(folder, tmp_path / "copy") == 4
    copied = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert copied == ["around", "below", "nowhere", "train.py"]


def test_a_snapshot_leaves_a_folder_out_whatever_links_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "real" / "state" / "jobs").mkdir(parents=True)
    (tmp_path / "real" / "state" / "jobs" / "record").touch()
    (tmp_path / "real" / "train.py").touch()
    (tmp_path / "link").symlink_to("real")
    for workspace, state in (("link", "real"), ("real", "link")):
        copy = tmp_path / f"copy of {workspace}"
        left_out = tmp_path / state / "state" / "jobs"
        assert take_snapshot(tmp_path / workspace, copy, leave_out=left_out) == 1
    # And of a workspace in it all is copied: that of a job which runs a snapshot itself.
    assert take_snapshot(tmp_path / "real", tmp_path / "copy", leave_out=tmp_path) == 2


def test_the_source_of_a_job_is_not_that_of_the_repository_whose_hook_launches_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / ".gitignore").write_text("train.py\n")
    git(other, "add", ".")
    git(other, "commit", "-qm", "of the other")
    expected = workspace_files(repository), source_state(repository).commit
    monkeypatch.setenv("GIT_DIR", os.fspath(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", os.fspath(other / ".git" / "index"))
    (tmp_path / "same").symlink_to(repository)  # another path: what git said of the first is remembered
    assert (workspace_files(repository), source_state(tmp_path / "same").commit) == expected


def test_a_snapshot_of_a_folder_goes_by_its_ignore_rules(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    files = [
        "train.py", "data/a.csv", "data/keep.csv", "lib/x.py", "lib/x.pyc", "lib/build/y.py", "build/z.py",
        ".venv/python", "lib/__pycache__/x.pyc", "deep/a/b/tmp/t.txt", "deep/own/secret.txt", "notes[1].txt",
    ]  # fmt: skip
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    rules = "# a comment\n\n*.csv\n!keep.csv\n*.pyc\n/build/\ndeep/**/tmp\nnotes\\[1].txt\n"
    (folder / ".gitignore").write_text(rules)
    (folder / "deep" / "own" / ".frayignore").write_text("secret.*\n")
    assert workspace_files(folder) == [
        ".gitignore", "data/keep.csv", "deep/own/.frayignore", "lib/build/y.py", "lib/x.py", "train.py",
    ]  # fmt: skip


def test_ignore_rules_without_git_are_those_of_git(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (
        "a.py", "a.pyc", "a.pyo", "a.pyx", "secrets-1.txt", "secrets-a.txt", "secrets--.txt", "!kept",
        "#note", "star*", "starless", "blank ", "bracket]", "x^", "Upper", "lower", "z[", "-dash",
        os.fsdecode(b"\xe9.bin"), "feed\f", "feed",
    ):  # fmt: skip
        (folder / name).touch()
    (folder / "two\nlines").mkdir()
    (folder / "two\nlines" / "a.pyc").touch()
    (folder / "in").mkdir()
    (folder / "in" / "side").touch()
    for rule in (
        "*.py[cod]", "secrets-[0-9].txt", "secrets-[!0-9].txt", "secrets-[^a-z-].txt", "secrets-[z-a].txt",
        "\\!kept", "\\#note", "star\\*", "blank\\ ", "blank ", "lower  ", "bracket[]]", "[[:upper:]]*",
        "[]-a]*", "x[\\^]", "[^]a-z]*", "z\\[", "[-x]*", " lower", "z[", "[[:punct:]]*", "in[+-9]side",
        os.fsdecode(b"\xe9.bin"), "\ufeff*.pyc", "feed\f", "*.pyc\r",
    ):  # fmt: skip
        (folder / ".gitignore").write_bytes(os.fsencode(f"{rule}\n"))
        found = workspace_files(folder)
        git(folder, "init", "-q")
        assert (rule, found) == (rule, workspace_files(folder))
        shutil.rmtree(folder / ".git")


def test_the_source_of_a_job_is_its_commit_and_its_changes(repository: Path, tmp_path: Path) -> None:
    state = source_state(repository)
    assert state.commit is not None
    assert len(state.commit) == 40
    assert state.dirty is False
    assert source_state(tmp_path) == SourceState()
    assert change_since(os.fspath(repository), state, time.time() + 1) is None


def test_files_that_change_after_the_launch_are_named(repository: Path) -> None:
    state = source_state(repository)
    launched = time.time() - 100
    os.utime(repository / "train.py", (launched - 1, launched - 1))
    assert change_since(os.fspath(repository), state, launched) is None
    (repository / "train.py").write_text("two")
    (repository / "new.py").write_text("new")
    (repository / "weights.bin").write_text("written by another job")
    changed = change_since(os.fspath(repository), state, launched)
    assert changed is not None
    assert "files changed between launch and start: new.py, train.py;" in changed
    git(repository, "commit", "-qam", "second")
    changed = change_since(os.fspath(repository), state, launched)
    assert f"at commit {str(state.commit)[:10]} at launch" in str(changed)


def test_files_of_a_folder_without_git_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("one")
    assert "train.py" in str(change_since(os.fspath(tmp_path), SourceState(), time.time() - 100))
    assert change_since(os.fspath(tmp_path), SourceState(), time.time() + 100) is None


def test_a_notice_is_set_when_its_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notice"
    monkeypatch.setenv("FRAY_PREEMPTION_NOTICE", os.fspath(path))
    notice = preemption_notice()
    assert not notice.is_set()
    assert notice.seconds_left is None
    assert not notice.wait(0.01)

    def preempt() -> None:
        path.with_suffix(".new").write_text(f"{time.time() + 30}\n")
        path.with_suffix(".new").replace(path)

    thread = threading.Timer(0.05, preempt)
    thread.start()
    assert notice.wait(60)
    assert notice.is_set()
    assert 20 < (notice.seconds_left or 0) <= 30
    thread.join()


def test_outside_of_a_job_no_notice_comes() -> None:
    assert not PreemptionNotice(None).wait(0)
    assert PreemptionNotice(None).seconds_left is None


def test_the_usage_of_processes_is_measured_while_they_run() -> None:
    code = "import sys; data = b'x' * 200_000_000; print('up', flush=True); sys.stdin.read()"
    meter = UsageMeter()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        def just_measured() -> bool:
            meter.sample([process.pid, 2**22 + 1])
            return not meter.due()

        until(just_measured, "no other sample is due")  # at once, where this process is let run
    assert meter.peak_memory is not None
    assert 200e6 < meter.peak_memory < 400e6
    assert meter.cpu_time is not None


def test_a_meter_keeps_the_sum_of_processes_that_are_gone_and_nothing_of_each() -> None:
    code = "import sys; sum(range(10**6)); print(flush=True); sys.stdin.read()"

    def measure(meter: UsageMeter, count: int) -> None:
        """Have so many processes work, one after the other, and sample each while it lives."""
        for _ in range(count):
            with subprocess.Popen(
                [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                assert process.stdout is not None
                process.stdout.readline()
                meter.sample([process.pid])
        meter.sample([])

    meter, times = UsageMeter(), list[float]()
    sizes = set[int]()
    for _ in range(3):
        measure(meter, 4)
        times.append(meter.cpu_time or 0.0)
        sizes.add(len(pickle.dumps(meter)))
    assert 0 < times[0] < times[1] < times[2]
    assert len(sizes) == 1


def test_usage_over_time_goes_on_when_the_clock_was_set_back(tmp_path: Path) -> None:
    history = UsageHistory(str(tmp_path), 0, 1)
    for now in (5000.0, 5000.2, 100.0, 100.2, 101.0):
        history.note(now, 1 << 20, 0.5)
    lines = (tmp_path / "usage" / "replica-0.attempt-1").read_text().splitlines()
    assert [float(line.split()[0]) for line in lines] == [5000.0, 100.0, 101.0]


def test_a_tree_that_was_killed_is_gone_when_two_looks_find_nothing() -> None:
    with subprocess.Popen(["sleep", "600"]) as first, subprocess.Popen(["sleep", "600"]) as hidden:
        looks = iter([[first.pid], [], [hidden.pid], [], []])
        assert kill_until_gone(lambda: next(looks))
        assert list(looks) == []
        codes = [process.wait(30) for process in (first, hidden)]
    assert codes == [-9, -9]
    assert kill_until_gone(list)


def test_what_the_system_says_at_the_end_counts_where_no_sample_was_taken() -> None:
    meter = UsageMeter()
    assert (meter.peak_memory, meter.cpu_time) == (None, None)
    code = "b'x' * 100_000_000; sum(range(10**6))"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    _, _, usage = os.wait4(pid, 0)
    meter.reaped(usage)
    assert (meter.peak_memory or 0) > 100e6
    assert (meter.cpu_time or 0) > 0


def test_a_control_group_limits_memory_where_it_has_the_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert limits_memory(os.fspath(tmp_path))
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids\n")
    assert not limits_memory(os.fspath(tmp_path))
    group = ControlGroup(os.fspath(tmp_path))
    assert not group.limit_memory(1 << 30)
    (tmp_path / "memory.max").write_text("max")
    assert group.limit_memory(1 << 30)
    assert (tmp_path / "memory.max").read_text() == "1073741824"


def test_a_memory_group_of_version_1_writes_its_own_file(tmp_path: Path) -> None:
    group = MemoryGroup(os.fspath(tmp_path))
    assert not group.limit_memory(1 << 30)
    (tmp_path / "memory.limit_in_bytes").write_text("-1")
    assert group.limit_memory(1 << 30)
    assert (tmp_path / "memory.limit_in_bytes").read_text() == "1073741824"


def test_an_attempt_has_a_group_below_that_of_its_job_which_counts_what_it_used(tmp_path: Path) -> None:
    job = ControlGroup(os.fspath(tmp_path))
    (tmp_path / "cgroup.procs").write_text("1\n")
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "cgroup.subtree_control").write_text("")
    attempt = job.below("replica-0.attempt-1")
    assert attempt is not None
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (attempt.memory_peak(), attempt.cpu_time()) == (None, None)
    folder = tmp_path / "replica-0.attempt-1"
    (folder / "cgroup.procs").write_text("0\n22\n")  # 0 is one of another process namespace
    (folder / "memory.peak").write_text("1048576\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\n")
    assert (attempt.memory_peak(), attempt.cpu_time()) == (1 << 20, 2.5)
    assert sorted(job.pids()) == [1, 22]
    assert job.below("replica-0.attempt-1") is None
    meter = UsageMeter()
    meter.counted(attempt.memory_peak(), attempt.cpu_time())
    assert (meter.peak_memory, meter.cpu_time) == (1 << 20, 2.5)
    for path in (*folder.iterdir(), *(each for each in tmp_path.iterdir() if each.is_file())):
        path.unlink()  # as the kernel does with its own
    job.remove()
    assert not tmp_path.exists()


def test_a_program_enters_its_group_by_itself_where_it_cannot_be_started_in_it(tmp_path: Path) -> None:
    """A folder that is no control group: `clone3` refuses it, as filters of containers may refuse all."""
    (tmp_path / "cgroup.procs").touch()
    output = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT)
    pid = start_program(("echo", "here"), os.environ, "/", output, ControlGroup(os.fspath(tmp_path)))
    os.close(output)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "output").read_text() == "here\n"
    assert (tmp_path / "cgroup.procs").read_text() == "0"


def test_a_program_that_cannot_start_is_named_whatever_its_name_is() -> None:
    """A name need not be text: the child must end all the same, and not go on as a second supervisor."""
    missing = os.fsdecode(b"/not/th\xe8re")
    with pytest.raises(FileNotFoundError) as caught:
        start_program((missing,), os.environ, "/", 2)
    assert caught.value.filename == missing
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_program_does_not_start_where_its_memory_cannot_be_limited(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        start_program(("true",), os.environ, "/", 2, limited_by=MemoryGroup(os.fspath(tmp_path)))


def test_more_memory_than_was_asked_for_is_said() -> None:
    assert over_asked(800 << 20, 256 << 20) == "asked 256 MiB, used 800 MiB"
    assert over_asked(256 << 20, 256 << 20) is None
    assert over_asked(None, 1) is None
    assert [in_words(size) for size in (1, 1023, 1536, 3 << 30)] == ["1 B", "1023 B", "1.5 KiB", "3 GiB"]
