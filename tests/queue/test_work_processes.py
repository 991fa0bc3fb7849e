"""Worker processes live through a server that restarts, and lose nothing."""

import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pytest
from queue_processes import ServerProcess, wait_until

from fray_queue import HttpQueue

ITEMS = 3000
WORKERS = 3
RESTARTS = 10

WORKER = """
import asyncio, sys, time
from fray_queue import HttpQueue, awork, work
queue = HttpQueue(sys.argv[1], "q", timeout=0.3)
path = sys.argv[2]
def note(item):
    with open(path, "a") as log:
        log.write(f"{item}\\n")
    time.sleep(0.005)
async def anote(item):
    with open(path, "a") as log:
        log.write(f"{item}\\n")
    await asyncio.sleep(0.005)
print("ready", flush=True)
if sys.argv[3] == "awork":
    import signal, threading
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    summary = asyncio.run(awork(queue, anote, concurrency=4, lease_timeout=3.0, stop=stop))
else:
    summary = work(queue, note, concurrency=2, lease_timeout=3.0, processes=sys.argv[3] == "processes")
print(summary.done + summary.lost, summary.queue_failures, flush=True)
"""


@pytest.mark.timeout(300)
def test_workers_outlive_a_server_that_restarts_ten_times(tmp_path: Path) -> None:
    with ExitStack() as stack, ServerProcess(tmp_path / "store", "--queue", "q") as server:
        queue: HttpQueue[int] = HttpQueue(server.url, "q")
        logs = [stack.enter_context((tmp_path / f"stderr{index}").open("w")) for index in range(WORKERS)]
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, server.url, str(tmp_path / f"log{index}"), kind],
                stdout=subprocess.PIPE,
                stderr=logs[index],
                text=True,
            )
            for index, kind in enumerate(("work", "awork", "processes"))
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n"
            for restart in range(RESTARTS):
                queue.push_many(range(restart * ITEMS // RESTARTS, (restart + 1) * ITEMS // RESTARTS))
                time.sleep(0.2)
                server.kill()
                time.sleep(0.5)  # longer than the workers' clients are patient
                wait_until(lambda: all(map(_saw_it_away, logs)), seconds=90)
                server.start()
            wait_until(lambda: queue.size() == 0, seconds=90)
            assert [worker.poll() for worker in workers] == [None] * WORKERS  # nobody ended
            done = failures = 0
            for worker in workers:
                worker.terminate()
                assert worker.stdout is not None
                said = worker.stdout.readline().split()
                assert worker.wait(60) == 0
                done, failures = done + int(said[0]), failures + int(said[1])
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                assert worker.stdout is not None
                worker.stdout.close()
        queue.close()
    seen = Counter(
        int(line) for index in range(WORKERS) for line in (tmp_path / f"log{index}").read_text().split()
    )
    assert sorted(seen) == list(range(ITEMS))  # every item was worked on
    assert done >= ITEMS
    assert failures >= WORKERS  # each saw the server away


def _saw_it_away(log: TextIO) -> bool:
    return "the queue failed, and the call is repeated" in Path(log.name).read_text()
