"""How long it takes to read a log: a tail of a large one, a line without an end, against `cat`.

python benchmarks/logs.py [--size MB]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from measure import at_most, fewer, judge, lines, timed

from fray.backend import LogReader, LogWriter
from fray.cluster import JobId, JobInfo, JobStatus, TaskStatus, follow_logs

ENDLESS = fewer(300_000_000, 30_000_000)


def main() -> None:
    """Write logs of some shapes and print what reading them costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=fewer(1000, 50), help="MB of the log whose tail is read")
    size = parser.parse_args().size * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        line = b"x" * 99 + b"\n"
        took = timed(partial(write, folder / "lines.log", line * 10_000, size))
        rows = [(f"write {size / 1e6:.0f} MB of lines", f"{took:.3f} s, {size / took / 1e6:.0f} MB/s")]
        follow = partial(read, folder / "lines.log")
        follow(tail=5)  # what is started once is not measured
        tail = statistics.median(timed(partial(follow, tail=5)) for _ in range(5))
        rows += [("--tail 5 of it, and a pipe", f"{tail:.3f} s"), ("all of it", f"{timed(follow):.3f} s")]
        write(folder / "endless.log", b"x" * 1_000_000, ENDLESS)
        cat = min(timed(partial(concatenate, folder / "endless.log")) for _ in range(3))
        took = min(timed(partial(read, folder / "endless.log")) for _ in range(3))
        rows.append(
            (f"{ENDLESS / 1e6:.0f} MB without a newline", f"{took:.3f} s, {took / cat:.1f} times cat")
        )
        lines("Logs", rows)
        judge(f"--tail 5 of {size / 1e6:.0f} MB", tail, at_most(0.1), " s")
        judge("a line without an end, ratio to cat", took / cat, at_most(10))


def write(path: Path, piece: bytes, size: int) -> None:
    """Write a log as a supervisor does."""
    log = LogWriter(str(path))
    for _ in range(size // len(piece)):
        log.write(piece)
    log.close()


def read(path: Path, tail: int | None = None) -> None:
    """Follow a finished job's log into a pipe, as `fray logs -f` does."""
    info = JobInfo(
        job_id=JobId("job-1"),
        name="job",
        status=JobStatus.SUCCEEDED,
        tasks=(TaskStatus(replica=0, attempt=1),),
    )

    def open_log(replica: int | None, _: int) -> LogReader:
        return LogReader(path if replica == 0 else path.with_suffix(".missing"))

    with into_a_pipe() as out:
        assert out.stdin is not None
        for line in follow_logs(lambda: info, open_log=open_log, tail=tail):
            out.stdin.write(line.encode(errors="replace"))
            out.stdin.write(b"\n")


def concatenate(path: Path) -> None:
    """Do the same with `cat`."""
    with into_a_pipe() as out:
        subprocess.run(
            ["cat", *sorted(map(str, path.parent.glob(f"{path.name}*")))], stdout=out.stdin, check=True
        )


def into_a_pipe() -> "subprocess.Popen[bytes]":
    """Start what reads everything and keeps nothing."""
    program = "import os\nwhile os.read(0, 1 << 20): pass"
    return subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE)


if __name__ == "__main__":
    main()
