"""A job's one log, read by its end: what is shown is right, and costs what it shows. Needs no cluster."""

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from fake_dashboard import FakeDashboard, fake_dashboard

from fray import UnsupportedError
from fray_ray import RayCluster

JOB = "logged-1"


class Written:
    """A job that runs, and its log as its driver leaves it on the head, with a mark after so many lines."""

    def __init__(
        self, table: FakeDashboard, replicas: int = 1, marks_every: int = 200, *, waiting: int = 0
    ) -> None:
        self._table, self._every, self._count = table, marks_every, 0
        self._pieces = ["Runtime env is setting up.\n"]
        self._attempts = [0] * replicas
        self.due = [0] * replicas  # attempts of replicas that are to begin, and wait
        self.lines: list[list[str]] = [[] for _ in range(replicas)]
        self.half = ""  # of a line that is being written
        for replica in range(replicas - waiting):
            self.begin(replica)
        self.publish()

    def begin(self, replica: int) -> None:
        self._attempts[replica] += 1
        self._append(f"[fray] replica {replica} starts, attempt {self._attempts[replica]}\n")

    def write(self, replica: int, line: str) -> None:
        self.lines[replica].append(line)
        self._append(f"[replica-{replica}] {line}\n")

    def _append(self, text: str) -> None:
        self._pieces.append(text)
        self._count += 1
        if self._count % self._every == 0:
            self._pieces.append(f"[fray] mark {self._count}\n")

    def publish(self, state: str = "running") -> None:
        """Let readers see all that was written, and the state of the job."""
        self._table.logs[JOB] = "".join(self._pieces) + self.half
        tasks = [
            {"replica": replica, "status": state, "attempt": attempt + self.due[replica]}
            | ({} if self.due[replica] or not attempt else {"started_at": 1.0})
            for replica, attempt in enumerate(self._attempts)
        ]
        info = json.dumps({"job_id": JOB, "name": "logged", "status": state, "tasks": tasks})
        status = "RUNNING" if state == "running" else "SUCCEEDED"
        metadata = {"fray.job_id": JOB, "fray.name": "logged", "fray.info": info}
        self._table.add(JOB, status, metadata)

    def grow(self, steps: list[Callable[[], None]]) -> None:
        """Take a step whenever somebody fetches the log; the job ends with the last one."""

        def step() -> None:
            if steps:
                steps.pop(0)()
                self.publish("running" if steps else "succeeded")

        self._table.before_a_log = step


@pytest.fixture
def table() -> Iterator[FakeDashboard]:
    with fake_dashboard() as dashboard:
        yield dashboard


def test_lines_are_those_of_their_replica_attempt_after_attempt(table: FakeDashboard) -> None:
    written = Written(table, replicas=2)
    written.write(0, "")
    written.write(1, "one")
    written.begin(1)
    written.write(1, "two, [replica-0] says [fray] mark")
    written.publish()
    cluster = RayCluster(table.url)
    for replica in range(2):
        found = list(cluster.monitor(JOB, replica=replica, follow=False))
        assert found == written.lines[replica]
    assert list(cluster.monitor(JOB, replica=1, tail=1, follow=False)) == written.lines[1][-1:]
    assert list(cluster.monitor(JOB, tail=3, follow=False)) == [
        "[replica-0] ",
        *(f"[replica-1] {line}" for line in written.lines[1]),
    ]
    with pytest.raises(UnsupportedError, match="tail="):
        cluster.monitor(JOB, since=0.0)


def test_a_line_in_the_making_is_read_when_it_is_complete(table: FakeDashboard) -> None:
    written = Written(table)
    written.write(0, "whole")
    written.half = "[replica-0] half"
    written.publish()
    cluster = RayCluster(table.url)
    assert list(cluster.monitor(JOB, follow=False)) == ["whole"]
    assert list(cluster.monitor(JOB, tail=1, follow=False)) == ["whole"]
    written.half = ""
    written.write(0, "half and the rest")
    written.publish()
    assert list(cluster.monitor(JOB, follow=False)) == ["whole", "half and the rest"]


def burst(chance: random.Random, written: Written) -> Callable[[], None]:
    """Something that a job does at once: it writes some lines, or very many, or starts replicas again."""

    def write() -> None:
        for _ in range(chance.choice((0, 1, 5, 700, 3_000))):
            replica = chance.randrange(len(written.lines))
            if chance.random() < 0.001:
                written.begin(replica)
            written.write(replica, chance.choice(("step", "step", "x" * 30, str(chance.random()))))

    return write


@pytest.mark.parametrize("seed", range(20))
def test_the_last_lines_are_the_last_however_long_the_log_is(table: FakeDashboard, seed: int) -> None:
    chance = random.Random(seed)
    written = Written(table, chance.randint(1, 3), marks_every=chance.choice((3, 10, 200)))
    for _ in range(4):
        burst(chance, written)()
    written.publish()
    cluster = RayCluster(table.url)
    for replica, lines in enumerate(written.lines):
        for tail in (1, chance.randint(2, 900), 100_000):
            found = list(cluster.monitor(JOB, replica=replica, tail=tail, follow=False))
            assert found == lines[-tail:], (replica, tail)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tail", [None, 10, 900])
def test_whatever_is_written_while_it_is_read_is_read_once_and_in_order(
    table: FakeDashboard, seed: int, tail: int | None
) -> None:
    chance = random.Random(seed)
    written = Written(table, marks_every=chance.choice((3, 10, 200)))
    burst(chance, written)()
    written.publish()
    begun = len(written.lines[0])
    written.grow([burst(chance, written) for _ in range(5)])
    found = list(RayCluster(table.url).monitor(JOB, tail=tail))
    lines = written.lines[0]
    if tail is None:
        assert found == lines
    else:  # some of what came with the first look may be among the last lines
        assert len(found) >= min(len(lines), tail + len(lines) - begun - 3_000)
        assert lines[len(lines) - len(found) :] == found


def test_a_tail_of_a_long_log_costs_what_it_shows_and_a_look_what_is_new(table: FakeDashboard) -> None:
    def more() -> None:
        written.write(0, "more")

    written = Written(table)
    for number in range(20_000):
        written.write(0, f"line {number:>200} of many")
    written.publish()
    size = len(table.logs[JOB])
    cluster = RayCluster(table.url)
    (last,) = cluster.monitor(JOB, tail=1, follow=False)
    assert last.endswith("19999 of many")
    assert table.fetched < size / 10
    table.fetched = 0
    written.grow([more] * 6)
    assert len(list(cluster.monitor(JOB))) == 20_006
    assert table.fetched < 3 * size  # without marks, six times as much


def test_a_log_that_is_followed_is_not_held_in_memory(table: FakeDashboard) -> None:
    def more() -> None:
        for _ in range(500):
            written.write(0, "x" * 1_000)

    def held() -> int:
        of_logs = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/job_log.py")])
        return sum(each.size for each in of_logs.statistics("filename"))

    written = Written(table)
    written.grow([more] * 10)
    tracemalloc.start()
    try:
        for number, _ in enumerate(RayCluster(table.url).monitor(JOB), 1):
            if number == 5_000:
                assert held() < 2_000_000
    finally:
        tracemalloc.stop()
    assert number == 5_000


@pytest.mark.parametrize("tail", [0, 1, 10])
def test_a_replica_that_begins_while_a_long_log_is_followed_from_its_end_is_read(
    table: FakeDashboard, tail: int
) -> None:
    def begin() -> None:
        written.begin(1)
        for number in range(5):
            written.write(1, f"new {number}")

    written = Written(table, replicas=2, waiting=1)
    for number in range(2_000):
        written.write(0, f"line {number}")
    written.publish()
    cluster = RayCluster(table.url)
    last = [f"[replica-0] line {number}" for number in range(2_000 - tail, 2_000)]
    assert list(cluster.monitor(JOB, tail=tail, follow=False)) == last
    written.grow([lambda: None, begin, lambda: None, lambda: None])
    found = list(cluster.monitor(JOB, tail=tail))
    assert [line for line in found if line.startswith("[replica-1]")] == [
        f"[replica-1] new {number}" for number in range(5)
    ]


def test_a_tail_of_a_long_log_whose_last_attempt_never_began_ends(table: FakeDashboard) -> None:
    written = Written(table)
    for number in range(2_000):
        written.write(0, f"line {number}")
    written.due[0] = 1  # it was stopped while it waited
    written.publish("failed")
    found = list(RayCluster(table.url).monitor(JOB, tail=600, follow=False))
    assert found == written.lines[0][-600:]


def test_a_log_with_bytes_that_ray_does_not_read_is_read(table: FakeDashboard) -> None:
    written = Written(table)
    written.write(0, "before")
    written.publish("succeeded")
    table.garbled = True
    assert list(RayCluster(table.url).monitor(JOB)) == ["before"]
