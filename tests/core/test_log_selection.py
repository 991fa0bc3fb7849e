"""What is requested of a log: its last lines, those since a time, those in which something is found."""

import errno
import os
import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from written_logs import KIB, CountedReader, job, monitor, numbered, written

from fray import UnsupportedError
from fray.backend import LogReader, LogWriter, follow_members
from fray.cluster import JobId, JobStatus, follow_logs


def test_a_tail_reads_no_more_than_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "replica-0.attempt-1.log"
    with path.open("wb") as file:  # sparse: a gigabyte that takes no room
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + numbered(0, 100))
    read = []

    class Counted(LogReader):
        def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
            data, start = super().read_before(offset, size)
            read.append(len(data))
            return data, start

    done = job(1, status=JobStatus.SUCCEEDED)
    missing = tmp_path / "environment.log"
    stream = follow_logs(
        lambda: done, open_log=lambda replica, _: Counted(missing if replica is None else path), tail=5
    )
    assert list(stream) == [f"line {number}" for number in range(95, 100)]
    assert sum(read) < 1 << 20


@pytest.mark.parametrize("seed", range(5))
def test_a_tail_ends_a_log_of_which_lines_without_an_end_were_dropped(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    pieces = [
        b"".join(draw.choices([b"x" * draw.randrange(9000), b"short\n", b"y" * 9000 + b"\r\n"], k=3))
        for _ in range(40)
    ]
    written(tmp_path / "replica-0.attempt-1.log", *pieces, limit=64 * KIB)
    done = job(1, status=JobStatus.SUCCEEDED)
    whole = list(monitor(tmp_path, done))
    assert any("were dropped" in line for line in whole)
    for count in range(1, len(whole) + 2):
        assert list(monitor(tmp_path, done, tail=count)) == whole[-count:]


def test_a_tail_of_long_lines_needs_little_memory(tmp_path: Path) -> None:
    size, count = 256 * KIB, 300
    with (tmp_path / "replica-0.attempt-1.log").open("wb") as file:  # sparse, again
        for number in range(count):
            file.seek(size * (number + 1) - 1)
            file.write(b"\n")
    tracemalloc.start()
    try:
        done = job(1, status=JobStatus.SUCCEEDED)
        assert [len(line) for line in monitor(tmp_path, done, tail=count)] == [size - 1] * count
        assert tracemalloc.get_traced_memory()[1] < size * count / 3
    finally:
        tracemalloc.stop()


def test_a_search_reads_a_log_once(tmp_path: Path) -> None:
    path, read = tmp_path / "replica-0.attempt-1.log", list[int]()
    path.write_bytes(b"the first\n" + numbered(0, 200_000) + b"the last\n")
    done = job(1, status=JobStatus.SUCCEEDED)
    stream = follow_logs(
        lambda: done,
        open_log=lambda replica, _: CountedReader(tmp_path / "none" if replica is None else path, read),
        grep="the",
        tail=5,
    )
    assert list(stream) == ["the first", "the last"]
    assert sum(read) < 1.2 * path.stat().st_size


@pytest.mark.parametrize("sweep", [False, True], ids=["replicas", "members"])
def test_a_tail_of_many_logs_reads_of_each_what_it_shows(tmp_path: Path, *, sweep: bool) -> None:
    count, short = 50, 3
    for number in range(count):
        lines = [b"%090d\n" % line for line in range(10 if number == short else 5000)]
        (tmp_path / f"replica-{number}.attempt-1.log").write_bytes(b"".join(lines))
    read: list[int] = []

    def open_log(replica: int | None, attempt: int) -> LogReader:
        return CountedReader(tmp_path / f"replica-{replica}.attempt-{attempt}.log", read)

    def open_member(job_id: str, replica: int | None, attempt: int) -> LogReader:
        number = job_id.rpartition("/")[2]
        return open_log(None if replica is None else int(number), attempt)

    done = job(*[1] * count, status=JobStatus.SUCCEEDED)
    if sweep:
        one = job(1, status=JobStatus.SUCCEEDED)
        members = [replace(one, job_id=JobId(f"sweep-1/{number}")) for number in range(count)]
        stream = follow_members(lambda _: done, "sweep-1", lambda: members, open_member, tail=5000)
    else:
        stream = follow_logs(lambda: done, open_log=open_log, tail=5000)
    shown = Counter(line.partition("]")[0].rpartition("-")[2].strip("[") for line in stream)
    assert shown.pop(str(short)) == 10
    assert (sum(shown.values()), set(shown.values())) == (4990, {101, 102})
    assert sum(read) < 5 * 91 * 5000


@pytest.mark.parametrize("choice", [{}, {"tail": 5}, {"since": 0.0}, {"since": 0.0, "tail": 5}], ids=str)
def test_a_stream_opens_each_log_once(tmp_path: Path, choice: dict[str, Any]) -> None:
    opened = Counter[tuple[int | None, int]]()
    for attempt in (1, 2):
        written(tmp_path / f"replica-0.attempt-{attempt}.log", b"line %d\n" % attempt)

    def open_log(replica: int | None, attempt: int) -> LogReader:
        opened[replica, attempt] += 1
        return LogReader(tmp_path / f"replica-{replica}.attempt-{attempt}.log")

    done = job(2, status=JobStatus.SUCCEEDED)
    assert list(follow_logs(lambda: done, open_log=open_log, **choice)) == ["line 1", "line 2"]
    assert set(opened.values()) == {1}
    opened.clear()
    member = replace(done, job_id=JobId("sweep-1/0"))
    stream = follow_members(
        lambda _: done, "sweep-1", lambda: [member], lambda _, *log: open_log(*log), **choice
    )
    assert list(stream) == ["[0] line 1", "[0] line 2"]
    assert set(opened.values()) == {1}


def test_what_came_since_a_time_is_found_by_the_index(tmp_path: Path) -> None:
    now = [1000.0]
    writer = LogWriter(str(tmp_path / "replica-0.attempt-1.log"), clock=lambda: now[0])
    for number in range(1000):
        writer.write(b"line %d\n" % number)
        now[0] += 10
    writer.close()
    info = job(1, status=JobStatus.SUCCEEDED)
    assert list(monitor(tmp_path, info, since=1000 + 9970)) == [f"line {n}" for n in range(997, 1000)]
    assert len(list(monitor(tmp_path, info, since=0))) == 1000
    assert list(monitor(tmp_path, info, since=1e9)) == []
    assert list(monitor(tmp_path, info, since=1000 + 9970, tail=5, grep="9$")) == ["line 999"]


@pytest.mark.parametrize("seed", range(10))
def test_what_came_since_any_time_is_shown_from_there_or_a_little_before(tmp_path: Path, seed: int) -> None:
    draw, now = random.Random(seed), [1000.0]
    writer = LogWriter(str(tmp_path / "replica-0.attempt-1.log"), clock=lambda: now[0])
    times = []
    for number in range(200):
        now[0] += draw.choice([0.0004, 0.1, 0.6, 1.1, 30.0])
        times.append(now[0])
        writer.write(b"line %d\n" % number)
    writer.close()
    info = job(1, status=JobStatus.SUCCEEDED)
    for since in (when + step for when in times for step in (-0.0002, 0.0, 0.0002, 0.3)):
        shown = [int(line.split()[1]) for line in monitor(tmp_path, info, since=since)]
        first = shown[0] if shown else len(times)
        assert shown == list(range(first, len(times)))
        assert all(when < since for when in times[:first]), "a line that was written later is missing"
        assert all(when > since - 1.01 for when in times[first:])


def test_a_line_that_was_begun_before_a_time_and_ended_after_it_is_shown_whole(tmp_path: Path) -> None:
    now = [1000.0]
    writer = LogWriter(str(tmp_path / "replica-0.attempt-1.log"), clock=lambda: now[0])
    for piece in (b"early\nloading ", b"done\n", b"late\n"):
        writer.write(piece)
        now[0] += 10
    writer.close()
    info = job(1, status=JobStatus.SUCCEEDED)
    assert list(monitor(tmp_path, info, since=1010)) == ["loading done", "late"]
    assert list(monitor(tmp_path, info, since=1010, tail=9)) == ["loading done", "late"]


def test_a_time_is_found_where_another_writer_went_on_with_a_log(tmp_path: Path) -> None:
    path, now = tmp_path / "replica-0.attempt-1.log", [1000.0]
    for name in (b"one", b"two", b"three"):
        writer = LogWriter(str(path), clock=lambda: now[0])
        writer.write(name + b"\n")
        now[0] += 2
        if name == b"one":
            writer.write(b"and a half\n")
        writer.close()
        now[0] += 100
    info = job(1, status=JobStatus.SUCCEEDED)
    assert list(monitor(tmp_path, info, since=1100)) == ["two", "three"]
    assert list(monitor(tmp_path, info, since=1200)) == ["three"]


def test_a_time_is_found_where_the_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, full, write = [1000.0], False, os.write

    def refused(file: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "no space left")
        return write(file, data)

    monkeypatch.setattr(os, "write", refused)
    writer = LogWriter(str(tmp_path / "replica-0.attempt-1.log"), clock=lambda: now[0], try_again=0.0)
    for line in (b"one\n", b"two\n", b"three\n", b"four\n"):
        full = line == b"three\n"
        writer.write(line)
        now[0] += 10
    writer.close()
    info = job(1, status=JobStatus.SUCCEEDED)
    assert list(monitor(tmp_path, info, since=1015)) == ["three", "four"]


def test_a_log_without_times_is_read_since_its_last_byte_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "replica-0.attempt-1.log"
    path.write_bytes(b"of 0.1.0\n")
    os.utime(path, (1000, 1000))
    info = job(1, status=JobStatus.SUCCEEDED)
    assert list(monitor(tmp_path, info, since=999)) == ["of 0.1.0"]
    assert list(monitor(tmp_path, info, since=1001)) == []
    with pytest.raises(UnsupportedError, match="when a line was written"):
        follow_logs(lambda: info, lambda replica, attempt, offset: b"", since=1.0)


def test_a_time_is_looked_for_while_the_last_segment_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "replica-0.attempt-1.log"
    path.write_bytes(b"a line\n")
    stat = os.stat
    looks: list[str] = []

    def drop_before_the_second_look(name: Any, **options: Any) -> os.stat_result:
        if name == os.fspath(path):
            looks.append(name)
            if len(looks) == 2:
                path.unlink()
        return stat(name, **options)

    monkeypatch.setattr(os, "stat", drop_before_the_second_look)
    assert LogReader(path).since(1.0) == 0
    assert len(looks) == 2


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"grep must be a regular expression, got '\('"):
        follow_logs(lambda: job(1), lambda replica, attempt, offset: b"", grep="(")
