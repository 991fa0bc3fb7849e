"""A page stays open beside jobs that come and go: neither the server nor the browser grows.

`SOAK=60` looks for an hour, beside 200 jobs; the suite does for a few seconds, beside a few.
"""

import contextlib
import os
import time
from collections import deque
from typing import Any, NamedTuple, cast

import psutil
import pytest
from browser import Page
from program import Started

from fray import Entrypoint, JobRequest, create_cluster
from fray.cluster import Cluster

MINUTES = float(os.environ.get("SOAK", "0.15"))
LONG = MINUTES >= 1
JOBS = 200 if LONG else 8  # in the list
ALIVE = int(os.environ.get("SOAK_ALIVE", "20")) if LONG else 3  # of them, with processes that run
LIVES = 60.0 if LONG else 3.0  # seconds of a job
STAYS = """
import time
for step in range(10**6):
    print("step", step, "word " * (step % 20), flush=True)
    time.sleep(0.2)
"""
_MIB = 1 << 20


class Held(NamedTuple):
    """What is held after everything that can be collected was: memory in MiB, nodes of the documents."""

    server: float
    browser: float
    heap: float
    nodes: int


def held(page: Page, server: psutil.Process) -> Held:
    """Collect garbage in every window, and look at what is left."""
    driver = cast(Any, page.driver)
    nodes, heap = 0, 0.0
    for handle in driver.window_handles:
        driver.switch_to.window(handle)
        driver.execute_cdp_cmd("Performance.enable", {})
        driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        metrics = {each["name"]: each["value"] for each in found}
        nodes += int(metrics["Nodes"])
        heap += metrics["JSHeapUsedSize"] / _MIB
    processes = psutil.Process(driver.service.process.pid).children(recursive=True)
    browser = sum(process.memory_info().rss for process in processes) / _MIB
    return Held(round(server.memory_info().rss / _MIB, 1), round(browser, 1), round(heap, 2), nodes)


class Traffic:
    """Real jobs of this machine that come and go: some run, the others have ended; the oldest are removed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ids: deque[str] = deque()
        self.launched = 0

    def fill(self) -> None:
        """Launch as many as the list has, most of which end at once."""
        while self.launched < JOBS - ALIVE:
            self._launch(0.0)
        self._cluster.wait(self._ids)

    def step(self) -> str:
        """Let one come, and one go."""
        newest = self._launch(LIVES)
        with contextlib.suppress(ValueError):  # it has not ended, or its supervisor is not gone
            while len(self._ids) > JOBS:
                self._cluster.remove(self._ids[0])
                self._ids.popleft()
        return newest

    def stop(self) -> None:
        """End those that still run."""
        for job_id in self._ids:
            if not self._cluster.poll(job_id).finished:
                self._cluster.terminate(job_id, grace=0.0)

    def _launch(self, lives: float) -> str:
        program = f"echo begins; sleep {lives}; echo ends; exit {self.launched % 3 % 2}"
        request = JobRequest("comes", Entrypoint.from_binary("sh", ["-c", program]))
        self._ids.append(self._cluster.launch(request))
        self.launched += 1
        return self._ids[-1]


@pytest.mark.timeout(MINUTES * 120 + 240)
def test_a_page_beside_jobs_that_come_and_go_does_not_grow(page: Page, command: Started) -> None:
    cluster = create_cluster(command.spec)
    server = psutil.Process(command.pid)
    stays = cluster.launch(JobRequest("stays", Entrypoint.from_binary("python", ["-c", STAYS])))
    traffic = Traffic(cluster)
    traffic.fill()
    page.open_link(command.link)
    page.driver.switch_to.new_window("window")
    page.go(f"job?id={stays}")
    page.shows("step", ".log")
    start, first, samples = time.monotonic(), None, 0
    while time.monotonic() - start < MINUTES * 60 or samples < 2:
        newest = traffic.step()
        time.sleep(LIVES / ALIVE)
        if time.monotonic() - start >= samples * MINUTES * 60 / max(MINUTES, 4):
            samples += 1
            now = held(page, server)
            # The first look is at what has just been built up.
            first = now if samples == 2 else first
            passed = time.monotonic() - start
            print(f"{passed:.0f} s, {traffic.launched} jobs came: {now}", flush=True)
    end = held(page, server)
    print(f"at the end, after {traffic.launched} jobs: {end}")
    page.driver.switch_to.window(page.driver.window_handles[0])
    page.shows(newest, "tbody")  # it was live to the end
    traffic.stop()
    cluster.terminate(stays, grace=0.0)
    assert first is not None
    assert end.nodes < first.nodes * 1.5 + 1000
    assert end.heap < first.heap * 1.5 + 4
    assert end.server < first.server + 30
    assert end.browser < first.browser * 1.3 + 100
