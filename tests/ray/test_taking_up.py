"""What a driver that is started again finds, and what it writes; nothing here needs a cluster."""

import threading
from pathlib import Path

import pytest

from fray_ray._head.record import DriverRecord, GangRecord, HostRecord
from fray_ray._head.replica_log import ReplicaLog, complete_log
from fray_ray._on_node.outbox import Outbox


def test_a_record_is_what_was_stored() -> None:
    gang = GangRecord(
        attempt=3, address="10.0.0.1", ports=[4, 5], culprit=1, told=[0], noticed={1: "drained"}
    )
    record = DriverRecord(
        state={"fray.info": "{}"},
        failures={0: 1, 12: 3},
        hosts={12: HostRecord(name="a", node="n", attempt=2, log=7, restarting=True)},
        gang=gang,
        outcome=("failed", "lost", None),
        endpoints=[{"name": "http"}],
    )
    assert DriverRecord.from_json(record.to_json()) == record
    assert DriverRecord.from_json(DriverRecord().to_json()) == DriverRecord()


def test_what_was_not_confirmed_is_there_for_the_next_who_asks() -> None:
    outbox = Outbox()
    for event in (b"one", b"two", {"exit_code": 0}):
        outbox.add(event)
    assert outbox.after(0, "begun", 0.0) == [b"one", b"two", {"exit_code": 0}]
    assert outbox.after(1, "one is written", 0.0) == [b"two", {"exit_code": 0}]
    assert outbox.confirmed == (1, "one is written")  # here the driver is killed
    assert outbox.after(0, "late", 0.0) == [], "a call of the driver that was killed changes nothing"
    assert outbox.confirmed == (1, "one is written")
    assert outbox.after(1, "another", 0.0) == [b"two", {"exit_code": 0}]


def test_output_that_nobody_takes_waits_in_the_program() -> None:
    outbox, added = Outbox(), threading.Semaphore(0)

    def write() -> None:
        for _ in range(40):
            outbox.add(bytes(1 << 16))
            added.release()

    writer = threading.Thread(target=write)
    writer.start()
    count = 0
    while added.acquire(timeout=0.5):
        count += 1
    assert count == 16, "a mebibyte"
    outbox.after(1, None, 0.0)
    assert added.acquire(timeout=60)
    assert not added.acquire(timeout=0.2)
    outbox.overflow()
    writer.join(60)
    assert not writer.is_alive()


def test_lines_that_are_in_the_log_are_not_written_again(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "job.log"
    noted = b"[fray] replica 1 starts, attempt 2\n[replica-1] a\n"
    path.write_bytes(
        noted + b"[replica-0] other\n[replica-1] b\n[fray] mark 1\n[replica-1] c\n[replica-1] d of whi"
    )
    complete_log(path)
    assert path.read_bytes().endswith(b"[replica-1] c\n")
    log = ReplicaLog(1, [])
    log.take_up(path, 2, {"log": len(noted), "rest": b""}, began=True)
    log.write(b"b\n")
    behind_b = path.read_bytes().index(b"[fray] mark")
    assert log.note() == {"log": behind_b, "rest": b""}, "where another one would go on"
    for piece in (b"c\nd of wh", b"ich all is written\n"):
        log.write(piece)
    assert capsysbinary.readouterr().out == b"[replica-1] d of which all is written\n"
    assert log.last_lines() == "; its last lines:\n  a\n  b\n  c\n  d of which all is written"


def test_the_mark_of_an_attempt_is_written_once(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "job.log"
    mark = b"[fray] replica 0 starts, attempt 1\n"
    for before in (b"", mark):
        path.write_bytes(before)
        ReplicaLog(0, []).take_up(path, 1, {"log": 0, "rest": b""}, began=False)
        assert capsysbinary.readouterr().out + before == mark
