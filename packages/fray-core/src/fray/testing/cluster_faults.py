"""What a cluster of directories withstands.

Whatever is killed or stopped, wherever a reader looks from, whatever the disk does: what is read is right,
reading changes nothing, and nothing outlives its supervisor. Where a test needs namespaces or a disk of its
own and this machine does not let it have them, it checks nothing.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray._discovery.current import create_cluster
from fray._jobs.clusters.directory_cluster import DirectoryCluster
from fray._jobs.records import usage_history
from fray._jobs.records.liveness import Holder
from fray._values.jobs import ExitReason, JobId, JobInfo, JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, numbers_in, program, running, until
from fray.testing.small_disk import SmallDisk

# Writes the ids of three processes: itself, a daemon with a session of its own, and one without environment.
TREE = """
    import os, subprocess, sys, time
    def note():
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()}\\n")
    note()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        note()
        time.sleep(600)
    child = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\\\n'); time.sleep(600)"
    subprocess.Popen(["env", "-i", sys.executable, "-c", child, sys.argv[1]], start_new_session=True)
    time.sleep(600)
"""
HOLD = """
    import os, sys, time
    print("up", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    print("done", flush=True)
"""
SHOW = """
    info = cluster.poll(sys.argv[1])
    listed = [each for each in cluster.list_jobs() if each.job_id == info.job_id]
    assert [each.status for each in listed] == [info.status]
    list(cluster.monitor(sys.argv[1], follow=False))
    import json
    print(json.dumps(info.to_dict()))
"""


class DirectoryContract(ClusterFixtures):
    """A `DirectoryCluster` whose jobs run on this machine."""

    def holder(self, cluster: DirectoryCluster, job_id: str) -> Holder:
        """The supervisor of a job, once it has written its identity."""

        def known() -> Holder | None:
            holder = cluster.record(job_id).holder()
            return holder if holder is not None and holder.pid else None

        found = until(known, "the supervisor is there", self.PATIENCE)
        assert found is not None
        return found

    def tree(self, cluster: DirectoryCluster, tmp_path: Path) -> tuple[JobId, list[int]]:
        """A running job and the processes of its tree."""
        pids = tmp_path / "tree"
        job_id = launch(cluster, program(TREE, pids))
        until(lambda: len(numbers_in(pids)) == 3, "the tree grows", self.PATIENCE)
        until(
            lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "the job reads running", self.PATIENCE
        )
        return job_id, numbers_in(pids)

    # --- killed, stopped ---

    def test_a_tree_ends_with_its_supervisor_though_nobody_looks(
        self, cluster: DirectoryCluster, tmp_path: Path
    ) -> None:
        job_id, pids = self.tree(cluster, tmp_path)
        os.kill(self.holder(cluster, job_id).pid, signal.SIGKILL)
        until(lambda: not any(map(running, pids)), "the tree ends", self.PATIENCE)
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)

    def test_a_job_runs_on_when_the_guardian_of_its_supervisor_is_killed(
        self, cluster: DirectoryCluster, tmp_path: Path
    ) -> None:
        job_id, pids = self.tree(cluster, tmp_path)
        guardian = self.holder(cluster, job_id).guardian
        os.kill(guardian, signal.SIGKILL)
        until(lambda: not running(guardian), "the guardian is gone", self.PATIENCE)
        assert cluster.poll(job_id).status is JobStatus.RUNNING
        cluster.terminate(job_id, grace=0.0)
        assert cluster.poll(job_id).status is JobStatus.STOPPED
        assert not any(map(running, pids))

    def test_both_killed_at_once_the_job_reads_lost_and_stopping_it_ends_what_is_left(
        self, cluster: DirectoryCluster, tmp_path: Path
    ) -> None:
        job_id, pids = self.tree(cluster, tmp_path)
        holder = self.holder(cluster, job_id)
        for pid in (holder.guardian, holder.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (holder.guardian, holder.pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: cluster.poll(job_id).finished, "the job reads lost", self.PATIENCE)
        before = contents(cluster.record(job_id).path)
        assert cluster.poll(job_id).tasks[0].reason is ExitReason.LOST
        assert contents(cluster.record(job_id).path) == before
        cluster.terminate(job_id, grace=0.0)
        assert not any(map(running, pids[:1]))
        for pid in pids[1:]:  # where no control group holds them, these have escaped
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def test_a_job_that_is_lost_has_not_succeeded_for_those_that_run_after_it(
        self, cluster: DirectoryCluster, tmp_path: Path
    ) -> None:
        job_id, pids = self.tree(cluster, tmp_path)
        after = launch(cluster, program("pass"), after=[job_id])
        until(lambda: job_id in (cluster.poll(after).pending_reason or ""), "it waits", self.PATIENCE)
        holder = self.holder(cluster, job_id)
        for pid in (holder.guardian, holder.pid):  # so that no process sends a notification
            os.kill(pid, signal.SIGSTOP)
        for pid in (holder.guardian, holder.pid):
            os.kill(pid, signal.SIGKILL)
        info = cluster.wait(after, timeout=self.PATIENCE)
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.DEPENDENCY_FAILED)
        assert "was lost" in str(info.error_message)
        cluster.terminate(job_id, grace=0.0)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @pytest.mark.parametrize("who", ["supervisor", "guardian", "both", "replica"])
    def test_a_job_ends_when_it_is_asked_to_whichever_of_its_processes_is_stopped(
        self, cluster: DirectoryCluster, tmp_path: Path, who: str
    ) -> None:
        job_id, pids = self.tree(cluster, tmp_path)
        holder = self.holder(cluster, job_id)
        stopped = {
            "supervisor": [holder.pid],
            "guardian": [holder.guardian],
            "both": [holder.guardian, holder.pid],
            "replica": pids,
        }[who]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        cluster.terminate(job_id, grace=0.2)
        assert time.monotonic() - started < 10
        assert cluster.poll(job_id).status is JobStatus.STOPPED
        assert not any(map(running, pids))
        # These have one more thing to do once the job has ended: to clean up.
        until(lambda: not any(map(running, [holder.pid, holder.guardian])), "they end", self.PATIENCE)

    @pytest.mark.parametrize("who", ["supervisor", "guardian"])
    def test_a_process_of_a_job_is_killed_while_the_job_is_stopped(
        self, cluster: DirectoryCluster, tmp_path: Path, who: str
    ) -> None:
        pids, asked = tmp_path / "pids", tmp_path / "pids.asked"
        note = "open(sys.argv[1] + '.asked', 'w').close()"  # and nothing else: it goes on
        deaf = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: {note})\n{HOLD_PID}"
        job_id = launch(cluster, program(deaf, pids))
        (pid,) = until(lambda: numbers_in(pids), "the job starts", self.PATIENCE)
        holder = self.holder(cluster, job_id)
        code = "cluster.terminate(sys.argv[1], grace=600.0)"
        opened = f"import sys\nfrom fray.cluster import *\ncluster = create_cluster({cluster.spec!r})\n{code}"
        with subprocess.Popen([sys.executable, "-c", opened, job_id]) as stopper:
            until(asked.exists, "the job is being stopped", self.PATIENCE)
            os.kill(holder.pid if who == "supervisor" else holder.guardian, signal.SIGKILL)
            cluster.terminate(job_id, grace=0.0)
            assert stopper.wait(timeout=self.PATIENCE) == 0
        assert cluster.poll(job_id).finished
        assert not running(pid)

    # --- from where it is read ---

    def read_in(self, cluster: DirectoryCluster, job_id: str, unshare: list[str], setup: str = "") -> JobInfo:
        """Read a job in namespaces of their own, as a container or another host would."""
        code = f"import sys\nfrom fray.cluster import *\ncluster = create_cluster({cluster.spec!r})\n"
        code += "\n".join(line[4:] for line in SHOW.splitlines())
        script = f'{setup}\nexec "$@"'
        command = ["unshare", *unshare, "sh", "-ec", script, "sh", sys.executable, "-c", code, job_id]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.PATIENCE)
        assert done.returncode == 0, done.stderr
        import json

        return JobInfo.from_dict(json.loads(done.stdout))

    @pytest.mark.parametrize("kind", ["--pid --fork --mount-proc", "--mount", "--uts --ipc --pid --fork"])
    def test_from_a_container_a_job_reads_as_it_is_and_lives(
        self, cluster: DirectoryCluster, tmp_path: Path, kind: str
    ) -> None:
        if not unshares(*kind.split()):
            return
        job_id, pids = self.tree(cluster, tmp_path)
        with unchanged(cluster, job_id):
            assert self.read_in(cluster, job_id, kind.split()).status is JobStatus.RUNNING
        assert all(map(running, pids))
        os.kill(self.holder(cluster, job_id).pid, signal.SIGKILL)
        cluster.wait(job_id, timeout=self.PATIENCE)
        assert self.read_in(cluster, job_id, kind.split()).tasks[0].reason is ExitReason.LOST

    def test_another_host_leaves_the_status_as_it_is_and_says_where_the_job_was_seen(
        self, cluster: DirectoryCluster, tmp_path: Path
    ) -> None:
        if not unshares("--mount", "--uts"):
            return
        job_id, pids = self.tree(cluster, tmp_path)
        boot = tmp_path / "boot_id"
        boot.write_text("00000000-1111-2222-3333-444444444444\n")
        setup = f"mount --bind {boot} /proc/sys/kernel/random/boot_id; hostname elsewhere"
        with unchanged(cluster, job_id):
            info = self.read_in(cluster, job_id, ["--mount", "--uts"], setup)
        assert info.status is JobStatus.RUNNING
        assert info.last_seen is not None
        assert info.last_seen.host == os.uname().nodename
        assert abs(info.last_seen.time - time.time()) < 60
        assert all(map(running, pids))
        assert cluster.poll(job_id).last_seen is None

    def test_after_a_restart_of_the_machine_a_job_reads_lost_and_nothing_is_written(
        self, cluster: DirectoryCluster, tmp_path: Path
    ) -> None:
        if not unshares("--mount"):
            return
        job_id, pids = self.tree(cluster, tmp_path)
        boot, stat = tmp_path / "boot_id", tmp_path / "stat"
        boot.write_text("00000000-1111-2222-3333-444444444444\n")
        stat.write_text(f"btime {int(time.time()) + 1000}\n")
        setup = f"mount --bind {boot} /proc/sys/kernel/random/boot_id; mount --bind {stat} /proc/stat"
        with unchanged(cluster, job_id):
            info = self.read_in(cluster, job_id, ["--mount"], setup)
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
        assert "restarted" in str(info.error_message)
        assert all(map(running, pids))

    # --- what the disk does ---

    def test_a_stray_file_and_a_damaged_record_hide_no_other(
        self, cluster: DirectoryCluster, tmp_path: Path
    ) -> None:
        sound, damaged, older = (launch(cluster, program("pass")) for _ in range(3))
        cluster.wait([sound, damaged, older], timeout=self.PATIENCE)
        root = cluster.record(sound).path.parent
        (root / "notes.txt").write_text("mine")
        (root / "a-folder").mkdir()
        (root / "a-folder" / "lock").mkdir()
        (cluster.record(damaged).path / "status.json").write_bytes(b"\0\0{")
        (cluster.record(older).path / "status.json").write_text('{"version": 99, "job": []}')
        infos = {info.job_id: info for info in cluster.list_jobs()}
        assert infos[sound].status is JobStatus.SUCCEEDED
        for bad in (damaged, older):
            assert infos[bad].status is JobStatus.FAILED
            assert "status.json" in str(infos[bad].error_message)
            assert cluster.wait(bad, timeout=self.PATIENCE).error_message == infos[bad].error_message
            cluster.terminate(bad)
        assert "later version" in str(infos[older].error_message)

    def test_a_disk_that_is_full_when_a_job_ends_well_does_not_make_it_fail(self, disk: SmallDisk) -> None:
        if disk.cluster is None:
            return
        cluster, go = disk.cluster, disk.folder / "go"
        job_id = launch(cluster, program(HOLD, go))
        other = launch(cluster, program(HOLD, disk.folder / "never"))
        for each in (job_id, other):
            assert next(cluster.monitor(each)) == "up"
        disk.fill()
        go.touch()
        assert cluster.wait(job_id, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        assert {info.job_id for info in cluster.list_jobs()} == {job_id, other}
        cluster.terminate(other, grace=0.0)
        assert cluster.poll(other).status is JobStatus.STOPPED
        disk.fill()  # what was reserved for the ends of those jobs is free by now
        with pytest.raises(OSError, match=r"space|full"):
            launch(cluster, program("pass"))
        disk.clear()
        assert cluster.wait(launch(cluster, program("pass")), timeout=self.PATIENCE).exit_code == 0

    def test_on_a_disk_that_is_read_only_for_a_while_everything_reads_and_stops(
        self, disk: SmallDisk
    ) -> None:
        if disk.cluster is None:
            return
        cluster, go = disk.cluster, disk.folder / "go"
        ends, stops = launch(cluster, program(HOLD, go)), launch(cluster, program(TREE, disk.folder / "tree"))
        until(lambda: "up" in list(cluster.monitor(ends, follow=False)), "it runs", self.PATIENCE)
        pids = until(
            lambda: found if len(found := numbers_in(disk.folder / "tree")) == 3 else [], "both run", 60.0
        )
        disk.protect()
        go.touch()
        assert {info.job_id for info in cluster.list_jobs()} == {ends, stops}
        cluster.terminate(stops, grace=0.0)
        assert not any(map(running, pids))
        assert not cluster.poll(ends).finished
        disk.release()
        infos = cluster.wait([ends, stops], timeout=self.PATIENCE)
        assert [info.status for info in infos] == [JobStatus.SUCCEEDED, JobStatus.STOPPED]

    @pytest.fixture
    def disk(self, spec_on: Callable[[Path], str], tmp_path: Path) -> Iterator[SmallDisk]:
        """A small disk of its own with the cluster's records on it."""
        disk = SmallDisk(tmp_path / "disk", tmp_path)
        if disk.mounted:
            cluster = create_cluster(spec_on(disk.path))
            assert isinstance(cluster, DirectoryCluster)
            disk.cluster = cluster
        yield disk
        disk.close()

    @pytest.fixture
    def spec_on(self) -> Callable[[Path], str]:
        """How the cluster is opened with its records below a folder: a fixture that every subclass gives."""
        raise NotImplementedError("a contract's subclass gives `spec_on`: fixture -> (folder -> spec)")


HOLD_PID = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w', 1)); time.sleep(600)"


@functools.cache
def unshares(*options: str) -> bool:
    """Whether this machine lets this process make namespaces of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode == 0


def contents(record: Path) -> dict[str, tuple[int, bytes]]:
    """What is in a record: names, modes and bytes, without what its supervisor renews."""
    return {
        os.fspath(path.relative_to(record)): (
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in record.rglob("*")
        if not path.is_symlink() and path.relative_to(record).parts[0] != usage_history.FOLDER
    }


@contextlib.contextmanager
def unchanged(cluster: DirectoryCluster, job_id: str) -> Iterator[None]:
    """Nothing in the record of a job changes inside the `with` block."""
    path = cluster.record(job_id).path
    before = contents(path)
    yield
    assert contents(path) == before
