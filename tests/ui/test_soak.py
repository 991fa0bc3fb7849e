"""A page stays open beside jobs that come and go: neither the server nor the browser grows.

`SOAK=60` looks for sixty times as long as the suite does: about fifteen minutes.
"""

import os
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from browser import Page
from clusters import NOW, StubCluster, job

from fray.backend import UiServer
from fray.cluster import UsageSample

SECONDS = 15 * float(os.environ.get("SOAK", "1"))
JOBS = 200
_MIB = 1 << 20


class Held(NamedTuple):
    """What is held after everything that can be collected was."""

    nodes: int
    heap: int
    server: int


def held(page: Page) -> Held:
    driver = cast(Any, page.driver)
    nodes = heap = 0
    for handle in driver.window_handles:
        driver.switch_to.window(handle)
        driver.execute_cdp_cmd("Performance.enable", {})
        driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        metrics = {each["name"]: each["value"] for each in found}
        nodes += int(metrics["Nodes"])
        heap += int(metrics["JSHeapUsedSize"])
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Held(nodes, heap, resident)


@pytest.mark.timeout(SECONDS * 2 + 180)
def test_a_page_beside_jobs_that_come_and_go_does_not_grow(
    page: Page, server: UiServer, stub: StubCluster
) -> None:
    stub.add(job("stays-1"), *(job(f"train-{number}") for number in range(JOBS)))
    page.open(server)
    page.driver.switch_to.new_window("tab")
    page.go("job?id=stays-1")
    page.shows("stays-1", "h1")
    first, number = None, JOBS
    start = shown = time.monotonic()
    while time.monotonic() - start < SECONDS:
        come_and_go(stub, number)
        number += 1
        time.sleep(0.05)
        if time.monotonic() - shown > max(SECONDS / 10, 2):
            shown = time.monotonic()
            now = held(page)
            first = first or now
            print(f"{shown - start:.0f} s, {number - JOBS} jobs gone: {now}", flush=True)
    end = held(page)
    assert first is not None
    page.driver.switch_to.window(page.driver.window_handles[0])
    page.shows(f"train-{number - 1}", "tbody")  # it was live to the end
    print(f"after {number - JOBS} jobs: {end}")
    assert end.nodes < first.nodes * 1.5 + 1000
    assert end.heap < first.heap * 1.5 + 4 * _MIB
    assert end.server < first.server + 60 * _MIB


def come_and_go(stub: StubCluster, number: int) -> None:
    """One job goes, one comes, one ends; a log and samples go on."""
    oldest = next(each for each in list(stub.jobs) if each != "stays-1")
    del stub.jobs[oldest]
    stub.add(job(f"train-{number}", submitted_at=NOW + number), job(f"train-{number - 50}", "failed"))
    stub.lines = [*stub.lines[-2000:], f"step {number}: {'word ' * (number % 20)}"]
    sample = UsageSample(
        replica=0, attempt=1, time=NOW + number, memory=number % 97 << 20, cpu_time=number / 3
    )
    stub.samples = [*stub.samples[-239:], sample]
