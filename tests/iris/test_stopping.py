"""`terminate` on Iris: every replica has its time to save, whatever the others do and the controller answers.

The replicas are real; what Iris does with tasks is played by `Worker`.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest
from iris_replicas import PATIENCE, Controller, launch_of, run_replica, serving

from fray import create_cluster
from fray.cluster import JobStatus, ResourceConfig
from fray.testing.cluster import until

CODE = """
import os, signal, sys, time
me, parent = FOLDER + "/" + os.environ["FRAY_REPLICA_ID"], os.getppid()
def save(*_):
    while not os.path.exists(me + ".may-end") and os.getppid() == parent:
        time.sleep(0.02)
    open(me + ".saved", "w").close()
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
open(me + ".up", "w").close()
while os.getppid() == parent:  # a test that fails kills that alone
    time.sleep(0.02)
"""


class Worker:
    """A controller and its workers: tasks are processes here, and what it is asked to run runs here."""

    def __init__(self) -> None:
        self.name, self.retries = "", 0
        self.processes: list[subprocess.Popen[str]] = []
        self.said: dict[str, str] = {}
        self.ended_with: list[list[bool]] = []  # of each `terminate`: which tasks ran
        self.refused: Callable[[str], bool] = lambda script: False

    # --- for the launcher ---

    def jobs(self, prefix: str) -> list[Mapping[str, Any]]:
        return []

    def status(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        over = all(process.poll() is not None for process in self.processes)
        state = "JOB_STATE_KILLED" if over else "JOB_STATE_RUNNING"
        return {"job_id": name, "state": state}, {"max_retries_failure": self.retries}

    def tasks(self, name: str, *, whole: bool = False) -> list[Mapping[str, Any]]:
        return [self._task(number, process) for number, process in enumerate(self.processes)]

    def _task(self, number: int, process: "subprocess.Popen[str]") -> Mapping[str, Any]:
        task = f"{self.name}/{number}"
        state = "TASK_STATE_RUNNING" if process.poll() is None else "TASK_STATE_KILLED"
        attempts = [{"attempt_id": 0, "state": state, "finished_at": {"epoch_ms": "1"}}]
        said = self.said.get(task, "")
        return {"task_id": task, "state": state, "attempts": attempts, "status_text_summary_md": said}

    def execute(self, task: str, command: Sequence[str], timeout: float) -> int | None:
        if self.refused(command[2]):
            return None
        return subprocess.run(command, check=False, timeout=PATIENCE).returncode

    def terminate(self, name: str) -> None:
        self.ended_with.append([process.poll() is None for process in self.processes])
        for process in self.processes:
            process.kill()

    # --- for the replicas ---

    def answer_to(self, method: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if method == "SetTaskStatusText":
            self.said[request["taskId"]] = request["statusTextSummaryMd"]
        if method == "ListTasks":
            tasks = self.tasks("")
            return {"tasks": [{"taskId": task["task_id"], "state": task["state"]} for task in tasks]}
        return {}


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    for process in worker.processes:
        process.kill()
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def address(worker: Worker) -> Iterator[str]:
    class Answering(Controller):
        def answer(self) -> None:
            found = worker.answer_to(self.path.rpartition("/")[2], json.loads(self.body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

    with serving(Answering) as found:
        yield found


class Job:
    """A job whose replicas save at SIGTERM until they may end."""

    def __init__(
        self, worker: Worker, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any
    ) -> None:
        self.worker, self._folder = worker, folder
        self.had_saved: list[bool] = []
        made = launch_of(address, folder, CODE.replace("FOLDER", repr(str(folder))), **fields)
        worker.name = made.request["name"]
        cluster: Any = create_cluster("iris", controller=address, user="ada")
        self.cluster = cluster
        for name in ("jobs", "status", "tasks", "execute", "terminate"):
            monkeypatch.setattr(cluster.iris, name, getattr(worker, name))
        for index in range(made.request["replicas"]):
            worker.processes.append(run_replica(made, address, folder / f"task-{index}", index))
        self.job_id = worker.name.rpartition("/")[2]
        for index in range(len(worker.processes)):
            until((folder / f"{index}.up").exists, f"replica {index} is up")

    def terminate(self, grace: float = PATIENCE) -> Thread:
        thread = Thread(target=self.cluster.terminate, args=[self.job_id, grace])
        thread.start()
        return thread

    def let_end(self, index: int) -> None:
        (self._folder / f"{index}.may-end").touch()

    def saved(self, index: int) -> bool:
        return (self._folder / f"{index}.saved").exists()

    def says_ended(self, index: int) -> bool:
        return '"ended"' in self.worker.said.get(f"{self.worker.name}/{index}", "")

    def await_exit(self, index: int) -> None:
        """Wait until a task is over, and note whether the first had saved by then."""
        self.worker.processes[index].wait()
        self.had_saved.append(self.saved(0))


@pytest.mark.parametrize("retries", [0, 3])
def test_a_task_stays_until_the_others_have_saved(
    worker: Worker, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    """Iris ends the others with it, or starts it again."""
    worker.retries = retries
    two = ResourceConfig(replicas=2)
    job = Job(worker, address, tmp_path, monkeypatch, resources=two, max_retries_failure=retries)
    stopping, first = job.terminate(), worker.processes[1]
    watch = Thread(target=job.await_exit, args=[1])
    watch.start()
    job.let_end(1)
    until(lambda: job.says_ended(1), "the second replica has ended its tree")
    assert first.poll() is None
    job.let_end(0)
    stopping.join(PATIENCE)
    watch.join(PATIENCE)
    assert job.had_saved == [True]
    assert {task.status for task in job.cluster.poll(job.job_id).tasks} == {JobStatus.STOPPED}
    assert worker.ended_with == [[retries > 0] * 2]


def test_time_to_save_is_not_over_when_one_request_fails(
    worker: Worker, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(worker, address, tmp_path, monkeypatch)
    failed: list[str] = []

    def refuses(script: str) -> bool:
        if "sleep" not in script or len(failed) == 2:
            return False
        failed.append(script)
        return True

    worker.refused = refuses
    stopping = job.terminate()
    until(lambda: len(failed) == 2, "two requests have failed")
    assert not worker.ended_with
    job.let_end(0)
    stopping.join(PATIENCE)
    assert job.saved(0)
    assert worker.ended_with == [[False]]


def test_all_replicas_are_notified_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of a gang save together."""
    count, lock = 20, Lock()
    places: set[str] = set()

    def execute(task: str, command: Sequence[str], timeout: float) -> int | None:
        place = command[4]
        code = subprocess.run(command, check=False, timeout=PATIENCE).returncode
        if Path(place, "stop").exists():
            with lock:
                places.add(place)
            if len(places) == count:
                for each in places:
                    Path(each, "ended").touch()
        return code

    names = [f"/ada/job-1/{number}" for number in range(count)]
    ended: list[str] = []

    def tasks(name: str, *, whole: bool = False) -> list[Mapping[str, Any]]:
        state = "KILLED" if ended else "RUNNING" if len(places) < count else "SUCCEEDED"
        attempts = [{"attempt_id": 0, "state": f"TASK_STATE_{state}", "finished_at": {"epoch_ms": "1"}}]
        return [{"task_id": each, "state": f"TASK_STATE_{state}", "attempts": attempts} for each in names]

    def status(name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return {"job_id": name, "state": "JOB_STATE_KILLED" if ended else "JOB_STATE_RUNNING"}, {}

    cluster: Any = create_cluster("iris", controller="http://127.0.0.1:1", user="ada")
    doubles: dict[str, Any] = {"execute": execute, "tasks": tasks, "status": status}
    doubles |= {"jobs": lambda prefix: [], "terminate": ended.append}
    for name, double in doubles.items():
        monkeypatch.setattr(cluster.iris, name, double)
    cluster.terminate("job-1", grace=2.0)
    assert len(places) == count
    assert ended == ["/ada/job-1"]
    assert not any(Path(place).exists() for place in places)
