"""Workers, a producer and an engine that are harmed by a fixed plan while they work."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import queue_worker
from queue_processes import wait_until

from fray.queue import open_queue

WORKERS = 4
HARMS = ("kill 0", "stop 1", "engine", "kill 2", "stop 3", "engine")
_PAUSE = 0.35  # seconds between two harms


class Engine(Protocol):
    """What the plan does to an engine."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


class EngineTorture:
    """One run: what was pushed is finished once, whatever was killed.

    Args:
        rounds: How often the plan is carried out.
    """

    def __init__(self, url: str, folder: Path, engine: Engine, rounds: int) -> None:
        self._url, self._folder, self._engine, self._rounds = url, folder, engine, rounds
        self._logs = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        self._timers: list[threading.Timer] = []
        self._over = threading.Event()
        self.pushed: list[int] = []
        self.kills = 0

    def _start(self) -> subprocess.Popen[bytes]:
        self._logs += 1
        log = self._folder / f"worker{self._logs}.log"
        return subprocess.Popen([sys.executable, queue_worker.__file__, self._url, str(log)])

    def _produce(self) -> None:
        queue: Any = open_queue(self._url)
        number = 0
        while not self._over.is_set() or not number:
            items = list(range(number, number + 10))
            queue.push_many(items)
            self.pushed += items
            number += 10
            time.sleep(0.05)
        queue.close()

    def run(self) -> None:
        """Carry the plan out, and let the workers finish what is left."""
        producer = threading.Thread(target=self._produce)
        producer.start()
        self._workers = [self._start() for _ in range(WORKERS)]
        try:
            wait_until(lambda: len(list(self._folder.glob("worker*.log"))) == WORKERS, 60.0)
            for harm in HARMS * self._rounds:
                time.sleep(_PAUSE)
                self._harm(*harm.split())
            self._over.set()
            producer.join(120)
            assert not producer.is_alive(), "the producer waits for ever"
            codes = [worker.wait(180) for worker in self._workers]
            assert codes == [0] * WORKERS
        finally:
            self._over.set()
            for timer in self._timers:
                timer.join()
            for worker in self._workers:
                worker.kill()
                worker.wait()
            producer.join(60)

    def _harm(self, kind: str, place: str = "0") -> None:
        worker = self._workers[int(place)]
        if kind == "engine":
            self._engine.kill()
            self._engine.start()
        elif kind == "kill":
            worker.kill()
            worker.wait()
            self.kills += 1
            self._workers[int(place)] = self._start()
        else:
            worker.send_signal(signal.SIGSTOP)
            beyond = 1.5 * queue_worker.LEASE_SECONDS
            self._timers.append(threading.Timer(beyond, worker.send_signal, [signal.SIGCONT]))
            self._timers[-1].start()

    def check(self) -> str:
        """Compare what was pushed with what was finished; say what was seen."""
        lines = queue_worker.noted(self._folder)
        finished = Counter({item: count for (verb, item), count in lines.items() if verb == "done"})
        # Whose worker was killed between the call and its note.
        silent = [item for item in self.pushed if not finished[item]]
        late = sum(count for (verb, _), count in lines.items() if verb == "late")
        assert set(finished) <= set(self.pushed)
        assert not finished or max(finished.values()) == 1, "an item was finished twice"
        assert all(lines["tries", item] for item in silent), "an item was lost"
        assert len(silent) <= self.kills
        return f"{len(self.pushed)} items, {self.kills} workers killed, {late} late, {len(silent)} silent"
