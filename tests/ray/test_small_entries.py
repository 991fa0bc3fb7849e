"""A job's entry in Ray's table is small however many replicas, attempts and words it has; nothing is lost.

What a driver writes of jobs with hundreds of attempts is made here, because to run them takes an hour; it is
read as users read it.
"""

import base64
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_dashboard import FakeDashboard, fake_dashboard

from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray import RayCluster
from fray_ray._attempts_file import AttemptsFile
from fray_ray._job_table import state_metadata

IN_ENTRY = 64  # earlier attempts of all replicas
OWN = {"fray.job_id": "big-1", "fray.name": "big", "fray.replicas": "1"}
START = 1_763_839_200.0


def attempt(replica: int, number: int, **fields: Any) -> TaskStatus:
    """An attempt that was preempted, with figures of its own."""
    chance = random.Random(replica * 10_000 + number)
    given: dict[str, Any] = {
        "status": JobStatus.FAILED,
        "reason": ExitReason.PREEMPTED,
        "started_at": START + number * 100 + chance.random(),
        "finished_at": START + number * 100 + 50 + chance.random(),
        "peak_memory": chance.randrange(1 << 34),
        "cpu_time": chance.random() * 100,
        "ports": {"http": chance.randrange(1024, 65536)},
    }
    return TaskStatus(replica=replica, attempt=number, **given | fields)


def job(replicas: int, attempts: int = 1, **fields: Any) -> JobInfo:
    """A job whose replicas had so many attempts, the last of which is as the fields say."""
    tasks = tuple(
        attempt(
            replica,
            attempts,
            **fields,
            previous=tuple(attempt(replica, number) for number in range(1, attempts)),
        )
        for replica in range(replicas)
    )
    return JobInfo(
        job_id=JobId("big-1"), name="big", status=JobStatus.FAILED, tasks=tasks, submitted_at=START
    )


def size(info: JobInfo) -> int:
    return len(json.dumps(state_metadata(info)))


@pytest.fixture
def table() -> Iterator[FakeDashboard]:
    with fake_dashboard() as dashboard:
        yield dashboard


def read(table: FakeDashboard, info: JobInfo, **changed: str) -> JobInfo:
    """The job as a user reads it, when its driver has written how it is."""
    table.add("big-1", "FAILED", {**OWN, **state_metadata(info), **changed})
    return RayCluster(table.url).poll("big-1")


@pytest.mark.parametrize(
    "info",
    [
        job(0),
        job(1),
        job(3, error_message="replica 1 exited with code 1; its last lines:\n  é\0\U0001f600"),
        job(2, attempts=30, exit_code=-9),
        replace(job(1), progress={}, warnings=("old",), error_message="why"),
    ],
    ids=["no replica", "one", "messages", "attempts", "fields"],
)
def test_a_state_is_the_same_after_its_entry(table: FakeDashboard, info: JobInfo) -> None:
    assert read(table, info) == info


def test_an_entry_does_not_grow_with_attempts_or_words_and_hardly_with_replicas() -> None:
    assert size(job(256)) < 20_000
    assert size(job(256, attempts=100)) < size(job(256, attempts=2)) + 5_000
    wordy = job(256, error_message="x" * 10_000)
    assert size(replace(wordy, error_message="y" * 10_000_000)) < 120_000


def test_a_long_message_keeps_its_beginning_and_its_end(table: FakeDashboard) -> None:
    message = "replica 0 exited with code 1; its last lines:\n" + "z" * 200_000 + "\nValueError: the cause"
    (task,) = read(table, job(1, error_message=message)).tasks
    assert task.error_message is not None
    assert len(task.error_message) < 70_000
    assert task.error_message.startswith("replica 0 exited")
    assert task.error_message.endswith("ValueError: the cause")


def test_an_entry_holds_the_latest_attempts_and_a_file_all_others(
    table: FakeDashboard, tmp_path: Path
) -> None:
    info = job(8, attempts=40)
    path = tmp_path / "attempts.txt"
    file = AttemptsFile(lambda: str(path))
    file.note(job(8, attempts=5).tasks)
    assert not path.exists()  # the entry holds them
    file.note(job(8, attempts=39).tasks)
    file.note(info.tasks)
    file.note(info.tasks)
    assert len(path.read_text().splitlines()) == 8 * 39
    held = read(table, info)  # its node does not answer
    assert {each.attempt for task in held.tasks for each in task.previous} == set(range(32, 40))
    assert sum(len(task.previous) for task in held.tasks) == IN_ENTRY
    # The file may be later than the entry: it has the end of the attempt that runs there, and a line cut off.
    later = json.dumps(attempt(0, 40).to_dict()) + '\n{"replica": 0, "att'
    table.files["fray-attempts-big-1.txt"] = path.read_text() + later
    assert read(table, info).tasks == info.tasks


def test_poll_has_all_attempts_and_a_list_the_latest(table: FakeDashboard, tmp_path: Path) -> None:
    def write(info: JobInfo) -> None:
        table.add("big-1", "FAILED", {**OWN, **state_metadata(info)})
        file.note(info.tasks)

    def earlier(info: JobInfo) -> int:
        return sum(len(task.previous) for task in info.tasks)

    path = tmp_path / "attempts.txt"
    file, many = AttemptsFile(lambda: str(path)), job(4, attempts=100)
    cluster = RayCluster(table.url)
    write(job(4, attempts=99))
    assert earlier(cluster.poll("big-1")) == IN_ENTRY
    table.files["fray-attempts-big-1.txt"] = path.read_text()
    assert earlier(cluster.poll("big-1")) == 4 * 98, "a node that did not answer once is asked again"
    write(many)
    table.files["fray-attempts-big-1.txt"] = path.read_text()
    assert cluster.poll("big-1").tasks == many.tasks
    asked = len(table.asked)
    assert cluster.poll("big-1").tasks == many.tasks
    assert not [each for each in table.asked[asked:] if "attempts" in each], "it is not fetched again"
    (listed,) = cluster.list_jobs()
    assert [task.attempt for task in listed.tasks] == [100] * 4
    assert earlier(listed) == IN_ENTRY


def test_a_disk_that_is_full_costs_the_earlier_attempts_alone(tmp_path: Path) -> None:
    folder, tasks = tmp_path / "nowhere", job(8, attempts=40).tasks
    file = AttemptsFile(lambda: str(folder / "file"))
    file.note(tasks)
    folder.mkdir()
    file.note(tasks)
    lines = (folder / "file").read_text().split("\n")
    assert len(list(filter(None, lines))) == 8 * 39, "what could not be written is written later"


def other(text: str, without: str = "", **columns: Any) -> str:
    """The packed replicas, changed."""
    data = json.loads(zlib.decompress(base64.b64decode(text)))
    data["tasks"] |= columns
    data["tasks"].pop(without, None)
    return base64.b64encode(zlib.compress(json.dumps(data).encode())).decode()


PACKED = state_metadata(job(3))["fray.tasks"]


def test_another_version_may_have_columns_more_or_fewer(table: FakeDashboard) -> None:
    changed = {"fray.tasks": other(PACKED, colour=["blue"] * 3)}
    assert read(table, job(3), **changed).tasks == job(3).tasks
    changed = {"fray.tasks": other(PACKED, without="ports")}
    assert read(table, job(3), **changed).tasks == job(3, ports={}).tasks


DAMAGED = {
    "no base64": "%",
    "cut off": PACKED[: len(PACKED) // 2 // 4 * 4],
    "not compressed": "AAAA",
    "too few": other(PACKED, attempt=[1, 2]),
    "no number": other(PACKED, count="3"),
    "unknown status": other(PACKED, status={"all": "dancing"}),
    "unknown reason": other(PACKED, reason=["bored"] * 3),
    "no status": other(PACKED, status=None),
    "no replica of that number": other(PACKED, replica=[0, 1, -1]),
    "an attempt in words": other(PACKED, attempt=["first", 2, 3]),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_replicas_that_cannot_be_read_are_one_bad_row(table: FakeDashboard, text: str) -> None:
    info = read(table, job(3), **{"fray.tasks": text})
    assert (info.status, info.tasks) == (JobStatus.FAILED, ())
    assert "cannot be read" in str(info.error_message)


def test_an_entry_of_an_earlier_version_is_read(table: FakeDashboard) -> None:
    info = job(2, attempts=3)
    table.add("big-1", "FAILED", {**OWN, "fray.info": json.dumps(info.to_dict())})
    assert RayCluster(table.url).poll("big-1").tasks == info.tasks
