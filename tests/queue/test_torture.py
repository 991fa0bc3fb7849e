"""Workers and servers killed and stopped at random: nothing is lost, nothing is finished twice."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import queue_worker
from queue_processes import ServerProcess

from fray.queue import open_queue

WORKERS = 8
ITEMS = 10_000


class Crew:
    """Worker processes, a log each, and somebody who is after them."""

    def __init__(self, url: str, folder: Path, server: ServerProcess | None) -> None:
        self._url, self._folder, self._server = url, folder, server
        self._chance = random.Random(4)
        self._started = 0
        self._workers = [self._start() for _ in range(WORKERS)]
        self._stopped: dict[int, float] = {}  # place in `_workers` -> when it goes on
        self.counts: Counter[str] = Counter()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        log = self._folder / f"worker{self._started}.log"
        return subprocess.Popen([sys.executable, queue_worker.__file__, self._url, str(log)])

    def run(self, seconds: float) -> None:
        """Harm somebody now and then, until all work is done."""
        end = time.monotonic() + seconds
        while any(worker.poll() is None for worker in self._workers):
            time.sleep(0.15)
            self._wake()
            if time.monotonic() < end:
                self._harm(self._chance.randrange(WORKERS))
        assert [worker.returncode for worker in self._workers] == [0] * WORKERS

    def _harm(self, place: int) -> None:
        worker = self._workers[place]
        kind = self._chance.choices(["kill", "stop", "server", "nothing"], [4, 3, 1, 4])[0]
        if kind == "server" and self._server is not None:
            self._server.kill()
            self._server.start()
            self.counts["server kills"] += 1
        elif worker.poll() is None and place not in self._stopped and kind in ("kill", "stop"):
            if kind == "kill":
                worker.kill()
                worker.wait()
                self._workers[place] = self._start()
            else:
                worker.send_signal(signal.SIGSTOP)
                self._stopped[place] = time.monotonic() + 1.5 * queue_worker.LEASE_SECONDS
            self.counts[f"worker {kind}s"] += 1

    def _wake(self) -> None:
        for place, until in list(self._stopped.items()):
            if time.monotonic() > until:
                self._workers[place].send_signal(signal.SIGCONT)
                del self._stopped[place]

    def end(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def lines(self) -> Counter[tuple[str, int]]:
        """Count what the workers wrote down."""
        found: Counter[tuple[str, int]] = Counter()
        for log in self._folder.glob("worker*.log"):
            for line in log.read_text().splitlines():
                verb, _, item = line.partition(" ")
                found[verb, int(item)] += 1
        return found


def _torture(url: str, folder: Path, server: ServerProcess | None, items: int, seconds: float) -> None:
    queue = open_queue(url)
    for start in range(0, items, 1000):
        queue.push_many(range(start, min(items, start + 1000)))
    crew = Crew(url, folder, server)
    try:
        crew.run(seconds)
    finally:
        crew.end()
    lines = crew.lines()
    finished = Counter({item: count for (verb, item), count in lines.items() if verb == "done"})
    silent = [
        item for item in range(items) if not finished[item]
    ]  # its worker was killed before it wrote it down
    late = sum(count for (verb, _), count in lines.items() if verb == "late")
    print(
        f"\ntorture {url.partition(':')[0]}: {items} items, {dict(crew.counts)}, {late} late dones refused, "
        f"{len(silent)} finished by workers that were killed before they said so, "
        "0 lost, 0 finished twice"
    )
    assert queue.size() == 0
    assert max(finished.values()) == 1
    assert all(lines["tries", item] for item in silent)
    assert len(silent) <= crew.counts["worker kills"]
    assert crew.counts["worker kills"] > 3


@pytest.mark.timeout(0)
def test_a_folder_with_workers_that_are_killed_and_stopped(tmp_path: Path, torture: int) -> None:
    _torture(f"file:{tmp_path}/queue?fsync=false", tmp_path, None, ITEMS * torture, 15.0 * torture)


@pytest.mark.timeout(0)
def test_a_server_and_workers_that_are_killed_and_stopped(tmp_path: Path, torture: int) -> None:
    with ServerProcess(tmp_path / "store", "--queue", "tasks") as server:
        _torture(f"{server.url}/tasks", tmp_path, server, ITEMS * torture, 15.0 * torture)
