"""A backend of fifty lines: what a stranger has to write, and what the core makes of it.

`ThreadCluster` has `launch`, `poll`, `terminate`, a list of jobs and a way to read its logs. Waiting,
following, filters, the older face, the command line and refusals come with it.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from fray import JobFailedError, JobNotFoundError, RuntimeEnv
from fray.cluster import (
    Cluster,
    ClusterCalls,
    ClusterContext,
    Entrypoint,
    ExitReason,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    LogStream,
    ResourceConfig,
    TaskStatus,
    follow_logs,
    retrying,
    use_cluster,
)
from fray.testing.command_line import main


class ThreadCluster(ClusterCalls):
    """Runs callables as threads; what they say goes to the logs."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobInfo] = {}
        self.logs: dict[tuple[str, int], bytes] = {}
        self.stopped: set[str] = set()

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        job_id = JobId.new(request.name)
        replicas = request.resources.replicas
        assert isinstance(replicas, int)
        tasks = [
            TaskStatus(replica=number, status=JobStatus.RUNNING, attempt=1) for number in range(replicas)
        ]
        self.set(job_id, JobStatus.RUNNING, tasks)
        threading.Thread(
            target=self.run, args=(job_id, Entrypoint.of(request.entrypoint), tasks), daemon=True
        ).start()
        return job_id

    def run(self, job_id: JobId, entrypoint: Entrypoint, tasks: list[TaskStatus]) -> None:
        status, reason = JobStatus.SUCCEEDED, ExitReason.EXITED
        for task in tasks:

            def say(text: str, number: int = task.replica) -> None:
                self.logs[job_id, number] = self.logs.get((job_id, number), b"") + text.encode()

            try:
                if entrypoint.callable is None:
                    say(f"{entrypoint}\n")
                else:
                    entrypoint.callable(say, lambda: job_id in self.stopped)
            except ValueError:
                status = JobStatus.FAILED
        if job_id in self.stopped:
            status, reason = JobStatus.STOPPED, ExitReason.STOPPED
        code = 3 if status is JobStatus.FAILED else 0
        ended = [
            TaskStatus(replica=t.replica, status=status, attempt=1, exit_code=code, reason=reason)
            for t in tasks
        ]
        self.set(job_id, status, ended)

    def set(self, job_id: JobId, status: JobStatus, tasks: list[TaskStatus]) -> None:
        self.jobs[job_id] = JobInfo(
            job_id=job_id,
            name=job_id.rpartition("-")[0],
            status=status,
            tasks=tuple(tasks),
            submitted_at=time.time(),
        )

    def poll(self, job_id: str, /) -> JobInfo:
        if job_id not in self.jobs:
            raise JobNotFoundError(job_id)
        return self.jobs[job_id]

    def monitor(self, job_id: str, /, **options: Any) -> LogStream:
        def read(replica: int | None, attempt: int, offset: int) -> bytes:
            return b"" if replica is None else self.logs.get((job_id, replica), b"")[offset : offset + 5]

        return follow_logs(lambda: self.poll(job_id), read, **options)

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        self.poll(job_id)
        self.stopped.add(job_id)
        self.wait(job_id)

    def _all_jobs(self, parent: str | None) -> Iterable[JobInfo]:
        return [info for info in self.jobs.values() if parent is None or info.job_id.parent == parent]


@pytest.fixture
def cluster() -> Iterator[ThreadCluster]:
    cluster = ThreadCluster()
    with use_cluster(cluster):
        yield cluster
    for job_id in cluster.jobs:
        cluster.terminate(job_id)


Say = Callable[[str], None]
Stopped = Callable[[], bool]


def greet(say: Say, stopped: Stopped) -> None:
    say("hello\nwor")
    say("ld\r\nlast")


def fail(say: Say, stopped: Stopped) -> None:
    raise ValueError("boom")


def fail_loudly(say: Say, stopped: Stopped) -> None:
    say("".join(f"line {number}\n" for number in range(5000)))
    raise ValueError("boom")


def idle(say: Say, stopped: Stopped) -> None:
    say("idling\n")
    while not stopped():
        time.sleep(0.002)


def test_it_is_a_cluster(cluster: ThreadCluster) -> None:
    assert isinstance(cluster, Cluster)


def test_lines_come_out_whole_with_their_replica(cluster: ThreadCluster) -> None:
    job_id = cluster.launch(JobRequest("job", greet, resources=ResourceConfig(replicas=2)))
    lines = list(cluster.monitor(job_id))
    assert sorted(lines) == sorted(
        f"[replica-{n}] {line}" for n in (0, 1) for line in ("hello", "world", "last")
    )
    assert list(cluster.monitor(job_id, replica=1)) == ["hello", "world", "last"]
    assert list(cluster.monitor(job_id, replica=0, tail=1)) == ["last"]
    assert list(cluster.monitor(job_id, tail=0)) == []
    for wrong in ({"replica": 2}, {"replica": -1}, {"tail": -1}):
        with pytest.raises(ValueError, match="must be"):
            cluster.monitor(job_id, **wrong)


def test_waiting_keeps_its_promises(cluster: ThreadCluster) -> None:
    slow, bad = cluster.launch(JobRequest("slow", idle)), cluster.launch(JobRequest("bad", fail))
    with pytest.raises(JobFailedError) as caught:
        cluster.wait([slow, bad], raise_on_failure=True)
    assert caught.value.info.job_id == bad
    with pytest.raises(TimeoutError, match=r"not finished after 0\.05 s: slow-.*running"):
        cluster.wait(slow, timeout=0.05)
    with pytest.raises(ValueError, match="job ids"):
        cluster.wait([slow, 3])  # type: ignore[list-item]
    cluster.terminate(slow)
    assert [info.status for info in cluster.wait([slow, bad])] == [JobStatus.STOPPED, JobStatus.FAILED]


def test_a_failure_is_raised_after_all_that_the_job_wrote_and_waits_for_no_other_job(
    cluster: ThreadCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, bad = cluster.launch(JobRequest("slow", idle)), cluster.launch(JobRequest("bad", fail_loudly))
    with pytest.raises(JobFailedError):
        cluster.wait([slow, bad], raise_on_failure=True, stream_logs=True)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"[{bad}]")]
    assert shown == [f"[{bad}] line {number}" for number in range(5000)]


def test_the_older_face_works_on_it(cluster: ThreadCluster) -> None:
    old = ClusterContext(cluster)
    job_id = old.create_job("python ./scripts/train.py --lr 1", RuntimeEnv(env={"A": "b"}))
    assert job_id.startswith("python-train.py-")
    cluster.wait(job_id)
    (job,) = old.list_jobs()
    assert (job["id"], job["status"]) == (job_id, "SUCCEEDED")
    assert list(cluster.monitor(job_id)) == ["/bin/sh -c 'python ./scripts/train.py --lr 1'"]
    old.delete_job(job_id)
    assert old.list_jobs()[0]["status"] == "SUCCEEDED"


def test_the_command_line_works_on_it(cluster: ThreadCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--name", "cli", "--replicas", "2", "--", "echo", "a b"]) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[replica-0] echo 'a b'", "[replica-1] echo 'a b'"]
    assert err.startswith("launched cli-")
    bad, slow = cluster.launch(JobRequest("bad", fail)), cluster.launch(JobRequest("slow", idle))
    assert main(["wait", bad]) == 3
    assert main(["stop", "slow", "--json"]) == 0
    out = capsys.readouterr().out
    (stopped,) = json.loads(out[out.index("[") :])
    assert (stopped["job_id"], stopped["status"], stopped["exit_code"]) == (slow, "stopped", 143)


def test_a_flaky_call_is_tried_again_until_its_time_is_up() -> None:
    tries: list[int] = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("away")
        return len(tries)

    def broken() -> None:
        raise ConnectionError("gone")

    assert retrying(flaky, (ConnectionError,), timeout=60) == 3
    with pytest.raises(ConnectionError, match="gone"):
        retrying(broken, (ConnectionError,), timeout=0)
    with pytest.raises(ZeroDivisionError):
        retrying(lambda: 1 / 0, (ConnectionError,), timeout=60)
