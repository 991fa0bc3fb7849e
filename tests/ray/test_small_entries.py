"""A job's entry in Ray's table is small however many replicas, attempts and words it has; nothing is lost."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobSubmissionClient

from fray.cluster import Entrypoint, ExitReason, JobId, JobInfo, JobRequest, JobStatus, TaskStatus
from fray.testing.gates import until
from fray_ray import RayCluster
from fray_ray._attempts_file import AttemptsFile, completed, read_attempts
from fray_ray._job_table import JobEntry, TableEntry, describe, info_in, read, state_metadata
from fray_ray._packed_tasks import EARLIER_IN_ENTRY, PackedTasks, pack
from fray_ray.testing import LocalRayCluster

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


def entry(info: JobInfo) -> JobEntry:
    metadata = describe(info.job_id, info.name, len(info.tasks), {}) | state_metadata(info)
    return JobEntry.of({"submission_id": "big-1", "status": "FAILED", "metadata": metadata})


def size(info: JobInfo) -> int:
    return len(json.dumps(state_metadata(info)))


@pytest.mark.parametrize(
    "info",
    [
        job(0),
        job(1),
        job(3, error_message="replica 1 exited with code 1; its last lines:\n  é\0\U0001f600"),
        job(2, attempts=30, exit_code=-9),
        replace(job(1), dirty=False, progress={}, warnings=("old",), error_message="why"),
    ],
    ids=["no replica", "one", "messages", "attempts", "fields"],
)
def test_a_state_is_the_same_after_its_entry(info: JobInfo) -> None:
    assert info_in(entry(info).metadata) == info
    found = read(entry(info))
    assert found is not None
    assert found.tasks == info.tasks


def test_an_entry_does_not_grow_with_attempts_or_words_and_hardly_with_replicas() -> None:
    assert size(job(256)) < 20_000
    assert size(job(256, attempts=100)) < size(job(256, attempts=2)) + 5_000
    wordy = job(256, error_message="x" * 10_000)
    assert size(replace(wordy, error_message="y" * 10_000_000)) < 120_000


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    message = "replica 0 exited with code 1; its last lines:\n" + "z" * 200_000 + "\nValueError: the cause"
    (task,) = info_in(entry(job(1, error_message=message)).metadata).tasks
    assert task.error_message is not None
    assert len(task.error_message) < 70_000
    assert task.error_message.startswith("replica 0 exited")
    assert task.error_message.endswith("ValueError: the cause")


def test_an_entry_holds_the_latest_attempts_and_a_file_all_others(tmp_path: Path) -> None:
    info = job(8, attempts=40)
    held = info_in(entry(info).metadata)
    assert sum(len(task.previous) for task in held.tasks) == EARLIER_IN_ENTRY
    assert {each.attempt for task in held.tasks for each in task.previous} == set(range(32, 40))
    path = tmp_path / "attempts.txt"
    file = AttemptsFile(lambda: str(path))
    file.note(job(8, attempts=5).tasks)
    assert not path.exists()  # the entry holds them
    file.note(job(8, attempts=39).tasks)
    file.note(info.tasks)
    file.note(info.tasks)
    assert len(path.read_text().splitlines()) == 8 * 39
    with path.open(
        "a"
    ) as later:  # than the entry: the end of the attempt that runs in it, and a line cut off
        later.write(json.dumps(attempt(0, 40).to_dict()) + "\n")
        later.write('{"replica": 0, "att')
    assert completed(held.tasks, read_attempts(path.read_text())) == info.tasks


def test_a_disk_that_is_full_costs_the_earlier_attempts_alone(tmp_path: Path) -> None:
    AttemptsFile(lambda: str(tmp_path / "nowhere" / "file")).note(job(8, attempts=40).tasks)


def other(text: str, **columns: Any) -> str:
    """The packed replicas, changed."""
    import base64
    import zlib

    data = json.loads(zlib.decompress(base64.b64decode(text)))
    data["tasks"] |= columns
    return base64.b64encode(zlib.compress(json.dumps(data).encode())).decode()


PACKED = pack(job(3).tasks)


def test_columns_of_a_later_version_are_passed_over() -> None:
    assert PackedTasks(other(PACKED, colour=["blue"] * 3)).unpacked() == job(3).tasks


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
def test_replicas_that_cannot_be_read_are_one_bad_row(text: str) -> None:
    known = entry(job(3))
    info = read(replace(known, metadata={**known.metadata, "fray.tasks": text}))
    assert info is not None
    assert (info.status, info.tasks) == (JobStatus.FAILED, ())
    assert "cannot be read" in str(info.error_message)


def test_an_entry_of_an_earlier_version_is_read() -> None:
    known, info = entry(job(0)), job(2, attempts=3)
    old = {"fray.info": json.dumps(info.to_dict())}
    kept = {name: text for name, text in known.metadata.items() if name != "fray.tasks"}
    found = read(replace(known, metadata=kept | old))
    assert found is not None
    assert found.tasks == info.tasks


def test_poll_has_all_attempts_and_a_list_the_latest(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    job_id = joined_cluster.launch(JobRequest("tried", Entrypoint.from_binary("true")))
    ended = joined_cluster.wait(job_id, timeout=200)
    table = JobSubmissionClient(ray_cluster.dashboard)
    until(lambda: table.get_job_status(job_id).is_terminal(), "Ray writes nothing more into the entry")
    many = replace(ended, tasks=job(4, attempts=100).tasks)
    written = TableEntry(job_id)  # as the job's driver does
    written.write(replace(many, tasks=job(4, attempts=99).tasks))
    (file,) = Path(os.environ["RAY_TMPDIR"], "ray", "session_latest", "logs").rglob(f"*attempts*{job_id}*")
    hidden = file.rename(file.with_name("hidden"))
    assert sum(len(task.previous) for task in joined_cluster.poll(job_id).tasks) == EARLIER_IN_ENTRY
    hidden.rename(file)  # a node that does not answer once is asked again
    assert sum(len(task.previous) for task in joined_cluster.poll(job_id).tasks) == 4 * 98
    written.write(many)
    assert joined_cluster.poll(job_id).tasks == many.tasks
    (listed,) = (info for info in joined_cluster.list_jobs() if info.job_id == job_id)
    assert [task.attempt for task in listed.tasks] == [100] * 4
    assert sum(len(task.previous) for task in listed.tasks) == EARLIER_IN_ENTRY
