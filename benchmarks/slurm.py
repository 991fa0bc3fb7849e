"""Jobs on a real Slurm of this machine, beside submitit: launch to done, and many jobs.

    python noxfile.py -s bench -- slurm

It needs what `fray_slurm.testing.LocalSlurm` needs. Both run the same function, which returns at once, on the
same cluster one after the other; what is measured is what each adds to `sbatch`. Then a thousand jobs wait in
the queue: what it costs to launch, look at and stop them, and how often Slurm is asked.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import submitit

from fray import Entrypoint, JobRequest, ResourceConfig, create_cluster
from fray.cluster import SweepId
from fray_slurm.testing import LocalSlurm

ONE_BY_ONE, MANY, PARALLEL = 10, 200, 8
WAITING, LOOKED = 1000, 60.0
SMALL = ResourceConfig(cpu=1, ram="200m")


def square(number: int) -> int:
    """The job."""
    return number * number


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


class Submitit:
    """What a user of submitit writes."""

    lines = 5

    def __init__(self, folder: Path) -> None:
        self._executor = submitit.AutoExecutor(folder / "submitit")
        self._executor.update_parameters(timeout_min=5, cpus_per_task=1, mem_gb=0.2)
        submitit.SlurmJob.watcher.delay_s = 2  # else it asks sacct every ten minutes

    def one(self) -> None:
        self._executor.submit(square, 3).result()

    def many(self) -> None:
        self._executor.update_parameters(slurm_array_parallelism=PARALLEL)
        jobs = self._executor.map_array(square, range(MANY))
        for job in jobs:
            job.result()


class Fray:
    """What a user of Fray writes."""

    lines = 4

    def __init__(self, folder: Path) -> None:
        self._cluster = create_cluster(f"slurm?root={folder}/records&poll_interval=2")

    def one(self) -> None:
        job_id = self._cluster.launch(
            JobRequest("square", Entrypoint.from_callable(square, [3]), resources=SMALL)
        )
        self._cluster.wait(job_id, raise_on_failure=True)

    def many(self) -> None:
        requests = [
            JobRequest("square", Entrypoint.from_callable(square, [number]), resources=SMALL)
            for number in range(MANY)
        ]
        self._cluster.wait(self._cluster.launch_many(requests, max_parallel=PARALLEL), raise_on_failure=True)


def scale(folder: Path) -> None:
    """Let a thousand jobs wait, and look at them for a while."""
    count = folder / "count"
    wrapper = folder / "bin" / "squeue"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho >> {count}\nexec /usr/bin/squeue "$@"\n')
    wrapper.chmod(0o755)
    os.environ["PATH"] = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
    cluster = create_cluster(f"slurm?root={folder}/waiting")
    request = JobRequest("waits", Entrypoint.from_binary("true"), backend={"slurm": {"begin": "now+3600"}})
    sweeps: list[SweepId] = []
    launched = timed(lambda: sweeps.append(cluster.launch_many([request] * WAITING)))
    (sweep,) = sweeps
    polled = timed(lambda: cluster.poll(sweep))
    listed = timed(lambda: cluster.list_jobs(parent=sweep))
    count.write_text("")
    with contextlib.suppress(TimeoutError):
        cluster.wait(sweep, timeout=LOOKED)
    asked = len(count.read_text())
    stopped = timed(lambda: cluster.terminate(sweep))
    print(f"{WAITING} jobs that wait: launch {launched:.2f} s, poll {polled:.2f} s, list {listed:.2f} s,")
    print(f"  waited for {LOOKED:.0f} s with {asked} squeue, stopped in {stopped:.1f} s")


def main() -> None:
    """Measure both, and print a table; then the thousand."""
    folder = Path(tempfile.mkdtemp())
    with LocalSlurm(cpus=4, accounting=True) as slurm:
        os.environ.update(slurm.variables)
        print(f"{'':10} {'one, s':>8} {'200, s':>8} {'lines':>6}")
        for kind in (Submitit, Fray):
            user = kind(folder)
            one = sorted(timed(user.one) for _ in range(ONE_BY_ONE))[ONE_BY_ONE // 2]
            many = timed(user.many)
            print(f"{kind.__name__.lower():10} {one:8.2f} {many:8.1f} {kind.lines:6}", flush=True)
        scale(folder)


if __name__ == "__main__":
    main()
