"""What a scheduler that is started again finds, and what it writes; nothing here needs a cluster."""

import contextlib
import queue
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fray.backend import AttemptEnd, Begin, Ended, EndTree, Placed, Policy, Supervision
from fray.cluster import ExitReason
from fray_ray import _job_kv
from fray_ray._head.log_marks import LogMarks
from fray_ray._head.output import LogFile
from fray_ray._head.record import JobRecord, ReplicaActorRecord, unpacked
from fray_ray._head.replica_log import ReplicaLog, complete_log
from fray_ray._on_node.outbox import Outbox


def test_a_record_is_what_was_stored() -> None:
    machine = Supervision(Policy(replicas=2, gang=True, max_retries_failure=1, places=True))
    for event in (
        Begin(),
        Placed((0, 1)),
        Ended(1, 1, AttemptEnd(ExitReason.EXITED, 3, "exited with code 3")),
    ):
        machine.handle(event, 1.0)
    record = JobRecord(
        machine=machine,
        ending=EndTree(3.0),
        actors={1: ReplicaActorRecord(name="a", node="n", attempt=1, log=7)},
        meeting=("10.0.0.1", [4, 5]),
        ports={(1, 1): {"http": 80}},
        endpoints=[{"name": "http"}],
        orphans={1: 5.0},
    )
    found = unpacked(record.packed())
    assert found is not None
    assert found.machine.tasks == machine.tasks
    assert found.machine.running == machine.running
    assert replace(found, machine=machine) == record
    assert unpacked(b"0.0.1\n" + record.packed()) is None, "another version's"


def test_a_record_of_many_attempts_keeps_the_latest_of_them() -> None:
    machine = Supervision(Policy(replicas=1, max_retries_failure=200))
    machine.handle(Begin(), 0.0)
    for number in range(1, 100):
        machine.handle(Ended(0, number, AttemptEnd(ExitReason.EXITED, 3, "exited")), number * 100.0)
        machine.handle(Begin(), number * 100.0 + 50.0)
    ports = {(0, number): {"http": number} for number in range(1, 101)}
    found = unpacked(JobRecord(machine=machine, ports=ports).packed())
    assert found is not None
    assert [each.attempt for each in found.machine.tasks[0].previous] == list(range(36, 100))
    assert [attempt for _, attempt in found.ports] == list(range(36, 101))
    found.machine.complete({0: machine.tasks[0].previous})
    assert found.machine.tasks == machine.tasks
    again = found.machine.handle(Ended(0, 100, AttemptEnd(ExitReason.EXITED, 0)), 10_000.0)
    assert again == machine.handle(Ended(0, 100, AttemptEnd(ExitReason.EXITED, 0)), 10_000.0)


def test_what_was_not_confirmed_is_there_for_the_next_who_asks() -> None:
    outbox = Outbox()
    for event in (b"one", b"two", {"exit_code": 0}):
        outbox.add(event)
    assert outbox.after(0, 0, "begun", 0.0) == [b"one", b"two", {"exit_code": 0}]
    assert outbox.after(0, 1, "one is written", 0.0) == [b"two", {"exit_code": 0}]  # here it is killed
    assert outbox.take_up(2) == (1, "one is written")
    for position in (0, 2):  # before and after what the next one knows of
        assert outbox.after(0, position, "late", 0.0) == [], "a call of one that was killed changes nothing"
    assert outbox.take_up(1) == (1, "one is written"), "nor this, of one between the two"
    assert outbox.after(2, 1, "another", 0.0) == [b"two", {"exit_code": 0}]


def test_a_scheduler_that_waits_for_output_when_another_begins_waits_no_longer() -> None:
    outbox, returned = Outbox(), queue.SimpleQueue[list[object]]()
    waiter = threading.Thread(target=lambda: returned.put(outbox.after(0, 0, None, 60.0)))
    waiter.start()
    outbox.take_up(1)
    assert returned.get(timeout=30) == []
    waiter.join()
    outbox.add(b"one")
    assert outbox.after(1, 0, None, 0.0) == [b"one"]


def test_output_that_nobody_takes_waits_in_the_program() -> None:
    outbox, added = Outbox(), threading.Semaphore(0)

    def write() -> None:
        for _ in range(40):
            outbox.add(bytes(1 << 16))
            added.release()

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(16):  # a mebibyte
        assert added.acquire(timeout=60)
    assert not added.acquire(timeout=0.5)
    outbox.after(0, 1, None, 0.0)
    assert added.acquire(timeout=60)
    assert not added.acquire(timeout=0.2)
    outbox.overflow()
    writer.join(60)
    assert not writer.is_alive()


def test_lines_that_are_in_the_log_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    noted = b"[fray] replica 1 starts, attempt 2\n[replica-1] a\n"
    path.write_bytes(
        noted + b"[replica-0] other\n[replica-1] b\n[fray] mark 1\n[replica-1] c\n[replica-1] d of whi"
    )
    complete_log(str(path))
    before = path.read_bytes()
    assert before.endswith(b"[replica-1] c\n")
    log = ReplicaLog(1, [], LogFile(str(path)), LogMarks())
    log.take_up(path, 2, {"log": len(noted), "rest": b""}, began=True)
    log.write(b"b\n")
    behind_b = path.read_bytes().index(b"[fray] mark")
    assert log.note() == {"log": behind_b, "rest": b""}, "where another one would go on"
    for piece in (b"c\nd of wh", b"ich all is written\n"):
        log.write(piece)
    assert path.read_bytes() == before + b"[replica-1] d of which all is written\n"
    assert log.last_lines() == "\nits last lines:\n  a\n  b\n  c\n  d of which all is written"


def test_the_message_of_a_replica_ends_with_a_few_kib_of_what_it_wrote(tmp_path: Path) -> None:
    secret = "sk-0123456789ABCDEF"
    log = ReplicaLog(0, [secret], LogFile(str(tmp_path / "job.log")), LogMarks())
    for number in range(20):
        log.write(secret.encode() * 50_000 + b"x" * (4096 - number) + b"\n")
        assert len(log.last_lines()) < 5_000
        assert not any(part in log.last_lines() for part in ("sk-", "ABC", "DEF"))


def test_the_mark_of_an_attempt_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    mark = b"[fray] replica 0 starts, attempt 1\n"
    for before in (b"", mark):
        path.write_bytes(before)
        log = ReplicaLog(0, [], LogFile(str(path)), LogMarks())
        log.take_up(path, 1, {"log": 0, "rest": b""}, began=False)
        assert path.read_bytes() == mark


class KilledError(Exception):
    """The scheduler is no more."""


@pytest.mark.parametrize("deleted", range(7))
def test_a_job_that_is_queued_still_has_its_plan_and_its_state_whenever_its_deletion_ends(
    monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    def delete(name: str) -> None:
        if len(store) <= 6 - deleted:
            raise KilledError
        store.remove(name)

    store = [f"gcs://fray-job-1.{word}" for word in ("state", "forget", "plan", "environ", "queued", "stop")]
    monkeypatch.setattr(_job_kv, "kv_list", lambda _: list(store))
    monkeypatch.setattr(_job_kv, "kv_delete", delete)
    with contextlib.suppress(KilledError):
        _job_kv.delete_all("job-1")
    left = {each.rpartition(".")[2] for each in store}
    assert len(left) == 6 - deleted
    if "queued" in left:  # the next scheduler carries it, and from the start where it has no state
        assert {"plan", "state"} <= left
    assert not left or "forget" in left, "or nobody would delete the rest"
