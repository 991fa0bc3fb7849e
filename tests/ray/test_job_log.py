"""A job's one log, read by its end: what is shown is right, and costs what it shows. Needs no cluster."""

import random
from collections.abc import Callable

import pytest

from fray import UnsupportedError
from fray_ray._head.log_marks import LogMarks
from fray_ray._launcher import job_log
from fray_ray._launcher.job_log import AttemptLog, JobLog


class Written:
    """A log as its writer leaves it on the head, and what is fetched of it."""

    def __init__(self) -> None:
        self._lines = ["Runtime env is setting up.\n"]
        self.written: dict[tuple[int, int], bytearray] = {}
        self.attempts: dict[int, int] = {}
        self.fetched = 0
        self.mark_after: Callable[[str], str] = LogMarks().after
        self.half = ""  # of a line that is being written

    @property
    def parts(self) -> dict[tuple[int, int], bytes]:
        """What the attempts of replicas have written."""
        return {key: bytes(data) for key, data in self.written.items()}

    def begin(self, replica: int) -> None:
        attempt = self.attempts[replica] = self.attempts.get(replica, 0) + 1
        self.written[replica, attempt] = bytearray()
        self._append(f"[fray] replica {replica} starts, attempt {attempt}\n")

    def write(self, replica: int, line: str) -> None:
        self.written[replica, self.attempts[replica]] += f"{line}\n".encode()
        self._append(f"[replica-{replica}] {line}\n")

    def _append(self, text: str) -> None:
        self._lines.append(text)
        if mark := self.mark_after(text):
            self._lines.append(mark)

    def fetch(self, lines: int | None) -> str:
        found = "".join(self._lines if lines is None else self._lines[-lines - 1 :]) + self.half
        self.fetched += len(found)
        return found

    def log(self) -> JobLog:
        return JobLog(self.fetch, lambda replica: self.attempts.get(replica, 0))


@pytest.fixture(autouse=True)
def every_look_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "_FRESH", -1.0)
    monkeypatch.setattr(job_log, "_SHARE", 1e9)


def all_of(log: AttemptLog, offset: int = 0) -> tuple[bytes, int]:
    """Read on from an offset for as long as there is more."""
    found = b""
    while True:
        data, offset = log.read(offset)
        if not data:
            return found, offset
        found += data


def last_of(log: AttemptLog, size: int) -> bytes:
    """Read so many bytes from the end."""
    found, offset = b"", log.end()
    while offset > 0 and len(found) < size:
        data, offset = log.read_before(offset, size - len(found))
        found = data + found
    return found


def test_lines_are_those_of_their_replica_and_attempt() -> None:
    written = Written()
    for replica, line in ((0, ""), (1, "one"), (1, None), (1, "two, [replica-0] says [fray] mark")):
        if line is None or replica not in written.attempts:
            written.begin(replica)
        if line is not None:
            written.write(replica, line)
    log = written.log()
    assert {key: all_of(log.attempt(*key))[0] for key in written.parts} == written.parts
    assert log.attempt(1, 1).read(2) == (b"e\n", 4)
    assert log.attempt(1, 3).read(0) == (b"", 0)
    assert log.attempt(None, 0).read(0) == (b"", 0)
    with pytest.raises(UnsupportedError, match="tail="):
        log.attempt(0, 1).since(0.0)


def test_a_line_in_the_making_is_read_when_it_is_complete() -> None:
    written = Written()
    written.begin(0)
    written.write(0, "whole")
    written.half = "[replica-0] half"
    log = written.log().attempt(0, 1)
    assert all_of(log) == (b"whole\n", 6)
    written.half = ""
    written.write(0, "half and the rest")
    assert log.read(6)[0] == b"half and the rest\n"


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("way", ["from the beginning", "from the end", "from the end and then all"])
def test_whatever_is_written_is_read_once_and_in_order(seed: int, way: str) -> None:
    chance = random.Random(seed)
    written = Written()
    written.mark_after = _every(chance.choice((3, 10, 200)))
    log = written.log()
    replicas = chance.randint(1, 3)
    for replica in range(replicas):
        written.begin(replica)

    def go_on() -> None:
        for _ in range(chance.choice((0, 1, 5, 700, 3_000))):
            replica = chance.randrange(replicas)
            if chance.random() < 0.001:
                written.begin(replica)
            written.write(replica, chance.choice(("step", "step", "x" * 30, "")))

    go_on()
    before = dict(written.parts)
    offsets = {}
    for key, data in before.items():
        part = log.attempt(*key)
        if way == "from the beginning":
            found, offsets[key] = all_of(part)
            assert found == data
        else:
            offsets[key] = part.end()
            size = chance.choice((0, 10, 10_000, 1 << 20))
            assert data.endswith(last_of(part, size))
            assert len(last_of(part, size)) == min(size, len(data))
    for _ in range(4):
        go_on()
        for key, data in written.parts.items():
            added, offset = all_of(log.attempt(*key), offsets.get(key, 0))
            assert added == data[len(before.get(key, b"")) :], (key, len(added))
            offsets[key] = offset
        before = dict(written.parts)
    if way == "from the end and then all":
        for key, data in written.parts.items():
            assert all_of(log.attempt(*key)) == (data, offsets[key])


def _every(lines: int) -> Callable[[str], str]:
    """A mark after so many lines, and no other like it."""
    count = iter(range(1_000_000_000))
    return lambda _: f"[fray] mark {number}\n" if (number := next(count)) % lines == 0 else ""


def test_looks_at_a_long_log_cost_what_is_new_and_a_tail_what_it_shows() -> None:
    written = Written()
    written.begin(0)
    for number in range(20_000):
        written.write(0, f"line {number:>200} of many")
    size = len(written.fetch(None))
    written.fetched = 0
    tail = written.log().attempt(0, 1)
    assert last_of(tail, 14) == b"19999 of many\n"
    assert written.fetched < size / 10
    log = written.log().attempt(0, 1)
    _, offset = all_of(log)
    written.fetched = 0
    for number in range(10):
        written.write(0, f"line {number}")
        data, offset = log.read(offset)
        assert data == f"line {number}\n".encode()
    assert written.fetched < size  # without marks, ten times as much


def test_marks_are_seldom_and_unlike_each_other() -> None:
    marks = LogMarks()
    found = [mark for _ in range(1_000) if (mark := marks.after("x" * 1_023 + "\n"))]
    assert len(set(found)) == len(found) == 7
    assert all(mark.startswith("[fray] mark ") and mark.endswith("\n") for mark in found)
