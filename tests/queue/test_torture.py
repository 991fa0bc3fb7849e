"""Workers and servers killed and stopped at random: nothing is lost, nothing is finished twice."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import queue_worker
from queue_processes import ServerProcess, wait_until

from fray import LeaseExpiredError
from fray.queue import open_queue
from fray_queue import HttpQueue

WORKERS = 8
ITEMS = 4000


class WorkerProcesses:
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


def _torture(url: str, folder: Path, server: ServerProcess | None, items: int, seconds: float) -> None:
    queue = open_queue(url)
    for start in range(0, items, 1000):
        queue.push_many(range(start, min(items, start + 1000)))
    workers = WorkerProcesses(url, folder, server)
    try:
        workers.run(seconds)
    finally:
        workers.end()
    lines = queue_worker.noted(folder)
    finished = Counter({item: count for (verb, item), count in lines.items() if verb == "done"})
    silent = [
        item for item in range(items) if not finished[item]
    ]  # its worker was killed before it wrote it down
    late = sum(count for (verb, _), count in lines.items() if verb == "late")
    print(
        f"\ntorture {url.partition(':')[0]}: {items} items, {dict(workers.counts)}, "
        f"{late} late dones refused, "
        f"{len(silent)} finished by workers that were killed before they said so, "
        "0 lost, 0 finished twice"
    )
    assert queue.size() == 0
    assert max(finished.values()) == 1
    assert all(lines["tries", item] for item in silent)
    assert len(silent) <= workers.counts["worker kills"]
    assert workers.counts["worker kills"] > 0


@pytest.mark.timeout(0)
def test_a_folder_with_workers_that_are_killed_and_stopped(tmp_path: Path, torture: int) -> None:
    _torture(f"file:{tmp_path}/queue?fsync=false", tmp_path, None, ITEMS * torture, 6.0 * torture)


@pytest.mark.timeout(0)
def test_a_server_and_workers_that_are_killed_and_stopped(tmp_path: Path, torture: int) -> None:
    with ServerProcess(tmp_path / "store", "--queue", "tasks") as server:
        _torture(f"{server.url}/tasks", tmp_path, server, ITEMS * torture, 6.0 * torture)


@pytest.mark.timeout(0)
def test_a_file_of_this_machine_with_workers_that_are_killed_and_stopped(
    tmp_path: Path, torture: int
) -> None:
    _torture(f"sqlite:{tmp_path}/queue.db", tmp_path, None, ITEMS * torture, 6.0 * torture)


CLIENTS, PUSHES = 32, 40


@pytest.mark.timeout(0)
def test_a_server_under_many_clients_that_is_killed_at_random_loses_nothing(
    tmp_path: Path, torture: int
) -> None:
    """Each client pushes and takes; what a push answered is taken once, whenever the server died."""
    pushed: list[str] = []
    done: list[str] = []
    ended = threading.Event()
    with ServerProcess(tmp_path / "store", "--queue", "tasks") as server:

        def produce(name: int) -> None:
            with HttpQueue[str](server.url, "tasks", timeout=300.0) as queue:
                for number in range(PUSHES * torture):
                    item = f"{name}-{number}"
                    queue.push(item)
                    pushed.append(item)

        def consume() -> None:
            with HttpQueue[str](server.url, "tasks", timeout=300.0) as queue:
                while not ended.is_set():
                    for lease in queue.pop_many(10, 5.0, wait=0.2):
                        with contextlib.suppress(LeaseExpiredError):
                            queue.done(lease)
                            done.append(lease.item)

        producers = [threading.Thread(target=produce, args=(name,)) for name in range(CLIENTS // 2)]
        consumers = [threading.Thread(target=consume) for _ in range(CLIENTS // 2)]
        for thread in (*producers, *consumers):
            thread.start()
        chance, kills = random.Random(5), 0
        while any(thread.is_alive() for thread in producers) or kills < 4:
            time.sleep(chance.uniform(0.1, 0.6))
            if kills < 8 * torture:  # on a busy machine it takes longer to start than it lives
                server.kill()
                server.start()
                kills += 1
        with HttpQueue[str](server.url, "tasks") as queue:
            wait_until(lambda: queue.size() == 0, 120.0)
        ended.set()
        for thread in consumers:
            thread.join(60)
    print(f"\ntorture server: {len(pushed)} items, {CLIENTS} clients, {kills} kills, 0 lost, 0 done twice")
    assert len(pushed) == CLIENTS // 2 * PUSHES * torture
    assert sorted(done) == sorted(pushed)
