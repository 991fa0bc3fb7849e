"""Logs of segments: written within limits and on full disks, read from any place."""

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from written_logs import KIB, everything, job, monitor, numbered, written

from fray.backend import LineSplitter, LogReader, LogWriter, OffsetLog, OutputPump, PartialLine
from fray.cluster import JobInfo, JobStatus, follow_logs


def test_a_short_log_is_one_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "replica-0.attempt-1.log"
    log = written(path, b"one\n", b"two")
    assert path.read_bytes() == b"one\ntwo"
    assert everything(log) == b"one\ntwo"
    assert log.end() == 7


def test_a_limit_keeps_the_beginning_and_the_end_and_says_what_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "replica-0.attempt-1.log"
    written(path, *(numbered(n, n + 100) for n in range(0, 100_000, 100)), limit=64 * KIB)
    files = sorted(tmp_path.glob("replica-0.attempt-1.log*"))
    assert sum(file.stat().st_size for file in files) < 65 * KIB
    lines = b"".join(file.read_bytes() for file in files).decode().splitlines()
    assert (lines[0], lines[-1]) == ("line 0", "line 99999")
    [note] = [at for at, line in enumerate(lines) if line.startswith("[fray] ")]
    before, after = int(lines[note - 1].split()[1]), int(lines[note + 1].split()[1])
    assert f"{after - before - 1:,} lines" in lines[note]
    assert "log_limit" in lines[note]
    shown = list(monitor(tmp_path, job(1, status=JobStatus.SUCCEEDED)))
    assert shown == lines
    assert list(monitor(tmp_path, job(1, status=JobStatus.SUCCEEDED), tail=2)) == lines[-2:]
    everything_backwards = list(monitor(tmp_path, job(1, status=JobStatus.SUCCEEDED), tail=10**6))
    assert everything_backwards == lines


def test_a_line_without_an_end_stays_within_the_limit_too(tmp_path: Path) -> None:
    written(tmp_path / "a.log", *[b"x" * 10_000] * 100, limit=64 * KIB)
    assert sum(file.stat().st_size for file in tmp_path.glob("a.log*")) < 65 * KIB


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_in_whatever_pieces_is_read_forwards_and_backwards(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    marks = [b"\n", b"\r\n", b"\r", b"x", b"yy", b"z" * 200, "é".encode()]
    text = b"".join(draw.choices(marks, k=draw.randrange(2000))) + b"end"
    path = tmp_path / "replica-0.attempt-1.log"
    writer = LogWriter(str(path), segment=256)  # so that a short text has many segments
    at = 0
    while at < len(text):
        size = draw.randrange(1, 300)
        writer.write(text[at : at + size])
        at += size
    writer.close()
    assert everything(LogReader(path)) == text
    expected = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode().split("\n")
    done = job(1, status=JobStatus.SUCCEEDED)
    assert list(monitor(tmp_path, done)) == expected
    for count in (0, 1, 7, len(expected), 10**6):
        last = list(monitor(tmp_path, done, tail=count))
        assert last == expected[len(expected) - min(count, len(expected)) :]
    found = list(monitor(tmp_path, done, grep="z", tail=3))
    assert found == [line for line in expected if "z" in line][-3:]


def test_a_long_line_is_read_in_time_that_grows_with_its_length(tmp_path: Path) -> None:
    splitter, calls = LineSplitter(), 0
    for _ in range(1000):
        calls += len(splitter.feed(b"x" * 1000))
    assert calls == 0
    assert splitter.feed(b"\nnext") == ["x" * 1_000_000]
    assert splitter.finish() == ["next"]


def test_a_line_that_fills_the_memory_comes_in_pieces() -> None:
    splitter = LineSplitter(longest=1000)
    pieces = [line for _ in range(30) for line in splitter.feed(b"x" * 100)] + splitter.feed(b"y\n")
    assert "".join(pieces) == "x" * 3000 + "y"
    assert [piece.end for piece in pieces if isinstance(piece, PartialLine)] == [""] * 3


def test_steps_of_a_progress_bar_are_distinguished_from_lines(tmp_path: Path) -> None:
    lines = LineSplitter().feed(b"10%\r20%\r100%\ndone\r\n")
    assert lines == ["10%", "20%", "100%", "done"]
    assert [getattr(line, "end", "\n") for line in lines] == ["\r", "\r", "\n", "\n"]


def test_a_noisy_replica_does_not_hide_the_others(tmp_path: Path) -> None:
    written(tmp_path / "replica-0.attempt-1.log", b"noise\n" * 1_000_000)
    written(tmp_path / "replica-1.attempt-1.log", b"a word\n")
    shown = list(monitor(tmp_path, job(1, 1), tail=10, follow=False))
    assert shown == ["[replica-0] noise"] * 9 + ["[replica-1] a word"]
    stream = monitor(tmp_path, job(1, 1))
    assert "[replica-1] a word" in [next(stream) for _ in range(400_000)]


def test_a_look_at_many_replicas_lists_their_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        (tmp_path / f"replica-{number}.attempt-1.log").write_bytes(b"up\n")
    listed: list[object] = []

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*path: object) -> object:
            listed.append(path)
            return real(*path)

        return call

    polled: list[JobInfo] = []

    def poll() -> JobInfo:
        status = JobStatus.RUNNING if len(polled) < 20 else JobStatus.SUCCEEDED
        polled.append(job(*[1] * 100, status=status))
        return polled[-1]

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))

    def open_log(replica: int | None, attempt: int) -> LogReader:
        return LogReader(tmp_path / f"replica-{replica}.attempt-{attempt}.log")

    assert len(list(follow_logs(poll, open_log=open_log, interval=0.001))) == 100
    assert len(listed) < 100, f"{len(polled)} looks"


def test_a_replica_that_writes_for_ever_lets_a_look_end(tmp_path: Path) -> None:
    path = tmp_path / "replica-0.attempt-1.log"
    writer = LogWriter(str(path))
    writer.write(b"x\n" * 1_000_000)
    seen = 0
    for _ in monitor(tmp_path, job(1), follow=False):
        seen += 1
        if seen % 1000 == 0:
            writer.write(b"y\n" * 1000)
    assert seen == 1_000_000


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 12_345])
def test_the_end_of_a_log_that_can_only_be_read_from_an_offset(size: int) -> None:
    text, asked = os.urandom(size), []

    def read(offset: int) -> bytes:
        asked.append(offset)
        return text[offset : offset + 100]

    log = OffsetLog(read)
    assert log.end() == size
    assert len(asked) < 50
    assert log.read_before(size, 10) == (text[-10:], max(0, size - 10))


def test_reading_a_field_of_the_job_follows_the_log_to_its_end(tmp_path: Path) -> None:
    written(tmp_path / "replica-0.attempt-1.log", b"one\n")
    stream = monitor(tmp_path, job(1, status=JobStatus.SUCCEEDED))
    assert stream.status is JobStatus.SUCCEEDED
    assert list(stream) == []
    assert not hasattr(stream, "colour")


def test_a_reader_that_falls_behind_learns_what_it_missed(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path / "replica-0.attempt-1.log"), 64 * KIB)
    writer.write(numbered(0, 100))
    stream = monitor(tmp_path, job(1))
    seen = [next(stream) for _ in range(100)]
    for n in range(100, 100_000, 100):
        writer.write(numbered(n, n + 100))
    while seen[-1] != "line 99999":
        seen.append(next(stream))
    assert any("were dropped here" in line for line in seen)


def with_full_disk(folder: Path, code: str) -> None:
    program = f"""
import errno, os, sys
from fray.backend import LogWriter
full = False
real = os.write
def write(fd, data):
    if full:
        raise OSError(errno.ENOSPC, "no space left")
    return real(fd, data)
os.write = write
path = {str(folder / "replica-0.attempt-1.log")!r}
{code}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_disk_that_is_full_for_a_while_costs_the_middle_and_says_so(tmp_path: Path) -> None:
    with_full_disk(
        tmp_path,
        """
log = LogWriter(path, try_again=0.01)  # many times while the disk is full, in vain
log.write(b"before\\n")
full = True
for number in range(100_000):
    log.write(b"line %d\\n" % number)
full = False
log.close()
""",
    )
    lines = list(monitor(tmp_path, job(1, status=JobStatus.SUCCEEDED)))
    assert lines[0] == "before"
    assert lines[-1] == "line 99999"
    [note] = [line for line in lines if "dropped here" in line]
    kept = sum(line.startswith("line ") for line in lines)
    assert f"{100_000 - kept:,} lines" in note
    assert kept > 1000


def test_a_disk_that_stays_full_loses_lines_and_raises_nothing(tmp_path: Path) -> None:
    program = "full = True\nlog = LogWriter(path)\nlog.write(b'gone\\n' * 100000)\nlog.close()"
    with_full_disk(tmp_path, program)
    assert "gone" not in list(monitor(tmp_path, job(1, status=JobStatus.SUCCEEDED)))


def test_a_file_system_that_reports_at_the_close_of_a_file_what_it_had_no_room_for_ends_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    def close(file: int) -> None:  # as NFS does where a quota is used up: the file is closed all the same
        real(file)
        closed.append(file)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    real = os.close
    path = tmp_path / "replica-0.attempt-1.log"
    log = LogWriter(str(path), segment=8 << 10)
    monkeypatch.setattr(os, "close", close)
    for number in range(4000):
        log.write(b"line %d\n" % number)
    log.close()
    log.close()
    monkeypatch.undo()
    assert len(closed) > 2
    lines = list(monitor(tmp_path, job(1, status=JobStatus.SUCCEEDED)))
    assert lines == [f"line {number}" for number in range(4000)]


def pumped(pump: OutputPump, path: Path, code: str, **limit: int) -> "subprocess.Popen[bytes]":
    end = pump.open(str(path), **limit)
    try:
        return subprocess.Popen([sys.executable, "-c", code], stdout=end, stderr=end)
    finally:
        os.close(end)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_pump_copies_what_children_write_and_its_last_line(tmp_path: Path) -> None:
    pump = OutputPump()
    paths = [tmp_path / f"replica-{number}.attempt-1.log" for number in range(3)]
    children = [
        pumped(pump, path, f"import os; os.write(1, b'x' * 3_000_000); os.write(2, b'{path.name}')")
        for path in paths
    ]
    assert len(pump.readable()) == 3

    def ended() -> bool:
        pump.copy()
        return all(child.poll() is not None for child in children)

    until(ended)
    for path in paths:
        pump.settle(str(path))
        assert path.read_bytes() == b"x" * 3_000_000 + path.name.encode()
    pump.close()
    assert pump.readable() == []


def test_a_child_that_a_replica_left_behind_holds_up_neither_settling_nor_closing(tmp_path: Path) -> None:
    pump = OutputPump()
    path = tmp_path / "replica-0.attempt-1.log"
    child = pumped(pump, path, "import time; print('up', flush=True); time.sleep(600)")
    try:

        def up() -> bool:
            pump.copy()
            return path.read_bytes() == b"up\n"

        until(up)
        pump.settle(str(path))
        pump.close()
    finally:
        child.kill()
        child.wait()


def open_files() -> list[int]:
    def is_open(number: int) -> bool:
        try:
            os.fstat(number)
        except OSError:
            return False
        return True

    return list(filter(is_open, range(1024)))


def test_a_log_that_cannot_be_begun_leaves_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "logs").symlink_to(tmp_path / "logs")  # a folder that cannot be read
    pump, before = OutputPump(), set(open_files())
    for _ in range(3):
        with pytest.raises(OSError, match="symbolic links"):
            pump.open(str(tmp_path / "logs" / "replica-0.attempt-1.log"))
    assert set(open_files()) <= before  # the collector may close what earlier tests left
    assert pump.readable() == []


def test_the_pump_leaks_no_file(tmp_path: Path) -> None:
    before = set(open_files())
    pump = OutputPump()
    for number in range(5):
        os.close(pump.open(str(tmp_path / f"{number}.log")))
    pump.copy()
    pump.close()
    assert set(open_files()) <= before
