"""Jobs on a real Slurm of this machine, compared with submitit: from launch to done, and many jobs.

    python noxfile.py -s bench -- slurm

It needs what `fray_slurm.testing.LocalSlurm` needs. Both run the same function, which returns at once, on the
same cluster one after the other; what is measured is what each adds to `sbatch`. Then a thousand jobs run on
a thousand nodes, which are one slurmd, and their batch steps do nothing: what it costs to launch and look at
them, to stop a thousand that wait, and the number of calls to Slurm. (Debian's `slurm-wlm-emulator` is no
use: it shares a library with the real one that refuses `FrontendName`.)
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import available, columns, fewer, lines, timed

from fray import Entrypoint, JobRequest, ResourceConfig, create_cluster
from fray.cluster import SweepId
from fray_slurm.testing import LocalSlurm

ONE_BY_ONE, MANY, PARALLEL = fewer(10, 2), fewer(200, 16), 8
MANY_NODES, LOOKED = fewer(1000, 50), float(fewer(60, 5))
SMALL = ResourceConfig(cpu=1, ram="200m")


def square(number: int) -> int:
    """The job."""
    return number * number


class Submitit:
    """What a user of submitit writes."""

    lines = 5

    def __init__(self, folder: Path) -> None:
        import submitit

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


@contextlib.contextmanager
def counted(folder: Path, *, asleep: bool = False) -> Iterator[Path]:
    """Put programs before Slurm's own that note each call, of this process and of its jobs.

    Args:
        asleep: Whether the batch step of a job does nothing but sleep.
    """
    folder.mkdir()
    calls, programs, before_us = folder / "calls", folder / "bin", os.environ["PATH"]
    programs.mkdir()
    for name in ("squeue", "sacct", "scontrol", "scancel", "sbatch"):
        before = "sed 's/^exec .*/exec sleep 3600/' | " if asleep and name == "sbatch" else ""
        real = shutil.which(name)
        (programs / name).write_text(f'#!/bin/sh\necho {name} >> {calls}\n{before}exec {real} "$@"\n')
        (programs / name).chmod(0o755)
    os.environ["PATH"] = f"{programs}{os.pathsep}{before_us}"
    try:
        yield calls
    finally:
        os.environ["PATH"] = before_us


def asked(calls: Path) -> str:
    """Return how often each program was called, and forget it."""
    counts = Counter(calls.read_text().split() if calls.exists() else [])
    calls.write_text("")
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"


def scale(slurm: LocalSlurm, folder: Path, calls: Path) -> None:
    """Let a thousand jobs run on a thousand nodes, and look at them; let a thousand wait, and stop them."""
    cluster = create_cluster(f"slurm?root={folder}/many&partition=many")
    request = JobRequest("many", Entrypoint.from_binary("true"), resources=SMALL)
    sweeps: list[SweepId] = []
    launched = timed(lambda: sweeps.append(cluster.launch_many([request] * MANY_NODES)))
    (sweep,) = sweeps
    rows = [("all launched", f"{launched:.2f} s ({asked(calls)})")]

    def running() -> int:
        return slurm.run("/usr/bin/squeue", "-h", "-r", "-t", "R", "-o", "%i").count("\n")

    started = timed(lambda: poll_until(lambda: running() == MANY_NODES))
    rows.append(("all run", f"{started:.1f} s later"))
    asked(calls)
    polled = timed(lambda: cluster.poll(sweep))
    listed = timed(lambda: cluster.list_jobs(parent=sweep))
    before = os.times()
    with contextlib.suppress(TimeoutError):
        cluster.wait(sweep, timeout=LOOKED)
    used = sum(os.times()[:4]) - sum(before[:4])
    rows += [("poll", f"{polled:.2f} s"), ("list", f"{listed:.2f} s")]
    rows.append((f"waiting for {LOOKED:.0f} s", f"{asked(calls)}, {used:.1f} s of CPU"))
    waiting = cluster.launch_many([request] * MANY_NODES)  # all nodes are taken
    asked(calls)
    stopped = timed(lambda: cluster.terminate(waiting))
    rows.append((f"{MANY_NODES} that wait are stopped", f"{stopped:.1f} s ({asked(calls)})"))
    lines(f"{MANY_NODES} jobs on as many nodes, which are one slurmd", rows)


def poll_until(holds: Callable[[], bool]) -> None:
    """Return when something holds."""
    while not holds():
        time.sleep(0.5)


def compare(folder: Path, calls: Path) -> None:
    """Run the same with both, and print a table; the calls of Slurm's commands are those of the 200."""
    rows = []
    for kind in (Submitit, Fray) if available("submitit", module="submitit") else (Fray,):
        user = kind(folder)
        one = sorted(timed(user.one) for _ in range(ONE_BY_ONE))[ONE_BY_ONE // 2]
        asked(calls)
        many = timed(user.many)
        rows.append((kind.__name__.lower(), f"{one:.2f}", f"{many:.1f}", str(kind.lines), asked(calls)))
    columns(
        f"One job, and {MANY} of which {PARALLEL} run at a time",
        ["one, s", f"{MANY}, s", "lines of the user's", "calls for all of them"],
        rows,
    )


def main() -> None:
    """Measure both, and print a table; then the thousand. `scale` as an argument: only those."""
    if not available("Slurm", program="slurmctld"):
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if "scale" not in sys.argv:
            with LocalSlurm(cpus=4, accounting=True) as slurm:
                os.environ.update(slurm.variables)
                with counted(folder / "compared") as calls:
                    compare(folder, calls)
        with LocalSlurm(nodes=1, crowd=MANY_NODES) as slurm:
            os.environ.update(slurm.variables)
            with counted(folder / "counted", asleep=True) as calls:
                scale(slurm, folder, calls)


if __name__ == "__main__":
    main()
