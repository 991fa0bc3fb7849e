"""A program that notes the signals which reach it, below a shell, and how Slurm may track processes."""

import os
from pathlib import Path

from fray.cluster import Cluster, Entrypoint
from fray.testing.cluster import launch, program

GRACE = 20  # seconds that a partition leaves to a preempted job

# Notes each signal in a file, below a shell: no signal of Slurm's own reaches it. It ends at SIGTERM.
TAKES = """
    import os, pathlib, signal, sys, time
    from fray.job import preemption_notice
    folder = pathlib.Path(sys.argv[1])
    notice = preemption_notice()
    def take(number, frame):
        with (folder / "taken").open("a") as file:
            print(signal.Signals(number).name, file=file)
        if number == signal.SIGTERM:
            (folder / "left").write_text(str(notice.seconds_left))
            sys.exit(0)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, take)
    print("up", os.getpid(), flush=True)
    while os.environ["FRAY_ATTEMPT"] == "1":
        time.sleep(0.05)
"""


def may_make_control_groups() -> bool:
    """Whether a Slurm of this user can have `proctrack/cgroup`: a container often cannot."""
    groups = Path("/sys/fs/cgroup")
    place = groups / "freezer" if (groups / "freezer").is_dir() else groups
    probe = place / f"fray-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


TRACKINGS = ["pgid", *(["cgroup"] if may_make_control_groups() else [])]


def below_a_shell(code: str, *words: object) -> Entrypoint:
    entrypoint = program(code, *words)
    assert entrypoint.binary is not None
    script = 'trap "" TERM USR1 USR2; "$@"; exit $?'
    return Entrypoint.from_binary("sh", ["-c", script, "sh", entrypoint.binary, *entrypoint.args])


def start(cluster: Cluster, folder: Path, **options: object) -> tuple[str, int]:
    """Launch a job that takes signals; return its id and the process of its program."""
    job_id = launch(cluster, below_a_shell(TAKES, folder), "takes", **options)
    word, pid = next(iter(cluster.monitor(job_id))).split()
    assert word == "up"
    return job_id, int(pid)


def taken(folder: Path) -> list[str]:
    path = folder / "taken"
    return path.read_text().split() if path.exists() else []
