"""The process that Slurm starts on a replica's node, alone: what reaches the program below it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray.backend import descendants, kill_until_gone
from fray.testing.cluster import until
from fray_slurm.testing import RecordedSlurm

# Says of each SIGTERM that it came, and ends so many seconds after the first one.
COUNTS = """
    import signal, sys, time
    times = []
    def take(number, frame):
        times.append(time.monotonic())
        print("SIGTERM", flush=True)
    signal.signal(signal.SIGTERM, take)
    print("up", flush=True)
    while not times or time.monotonic() - times[0] < float(sys.argv[1]):
        time.sleep(0.05)
"""


class Node:
    """A step of Slurm's: `_on_node` and the program below it.

    Args:
        record: The folder of the job's record, which is made.
        before: Python that the process runs first.
        tracking: How Slurm signals it; as most clusters by default, one process alone.
    """

    def __init__(
        self,
        record: Path,
        code: str,
        *words: object,
        before: str = "",
        tracking: str = "cgroup",
        kill_wait: float = 30.0,
    ) -> None:
        (record / "slurm").mkdir(parents=True)
        self._note = record / "slurm" / "replica-0.1.x.json"
        self.notice = record / "notice"
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "FRAY_REPLICA_ID": "0", "FRAY_ATTEMPT": "1"}
        variables = step | {
            "FRAY_JOB_DIR": os.fspath(record),
            "FRAY_PREEMPTION_NOTICE": os.fspath(self.notice),
            "_FRAY_SLURM_SIGNALS": f"proctrack/{tracking},{kill_wait:g},60",
        }
        own = [sys.executable, "-c", f"{before}\nfrom fray_slurm._on_node import main; main()"]
        program = [sys.executable, "-c", textwrap.dedent(code), *map(str, words)]
        self.process = subprocess.Popen(
            [*own, os.fspath(self._note), *program],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.line() == "up"

    def line(self) -> str:
        """Return the next line of the program."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def rest(self) -> list[str]:
        """Return all lines until the end."""
        assert self.process.stdout is not None
        return self.process.stdout.read().split("\n")[:-1]

    def want_end(self) -> None:
        """Do what Fray does before it asks Slurm for the signal."""
        Path(f"{self._note}.told").write_text("stop")

    @property
    def noted(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self._note.read_text())
        return found


Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a `Node`, which is ended with the test."""
    nodes: list[Node] = []

    def start(code: str, *words: object, **options: object) -> Node:
        nodes.append(Node(tmp_path / f"record-{len(nodes)}", code, *words, **options))  # type: ignore[arg-type]
        return nodes[-1]

    yield start
    for node in nodes:
        pid = node.process.pid
        kill_until_gone(lambda pid=pid: descendants(pid))  # type: ignore[misc]
        node.process.kill()
        node.process.communicate()


def test_a_program_that_ends_by_a_signal_of_slurms_is_not_signalled_again_by_the_stop_after_it(
    start: Start,
) -> None:
    """A supervisor that Slurm ends with the job stops its replicas."""
    node = start(COUNTS, 8.0)
    node.process.send_signal(signal.SIGTERM)
    assert node.line() == "SIGTERM"
    node.want_end()
    assert node.rest() == []
    assert node.noted["code"] == 0


def test_a_signal_that_slurm_sends_late_is_not_the_second_one(start: Start) -> None:
    """As by a slurmctld that is away for a while: the program was signalled without it."""
    node = start(COUNTS, 3.0)
    node.want_end()
    assert node.line() == "SIGTERM"
    node.process.send_signal(signal.SIGTERM)
    assert node.rest() == []
    assert "signalled" not in node.noted


def test_a_stop_that_comes_while_slurm_is_asked_how_long_the_program_has_is_not_the_second_one(
    recorded: RecordedSlurm, start: Start, tmp_path: Path
) -> None:
    scontrol = tmp_path / "recorded" / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("exit ", "sleep 1.5\nexit "))
    node = start(COUNTS, 3.0)
    node.process.send_signal(signal.SIGTERM)
    until(lambda: recorded.calls("scontrol"), "Slurm is asked", 60)
    node.want_end()
    node.process.send_signal(signal.SIGTERM)
    assert node.rest() == ["SIGTERM"]


def test_a_program_that_went_on_after_its_notice_is_signalled_for_a_stop(start: Start) -> None:
    node = start(COUNTS, 60.0, kill_wait=2.0)
    node.process.send_signal(signal.SIGTERM)
    assert node.line() == "SIGTERM"
    time.sleep(2.5)
    node.want_end()
    node.process.send_signal(signal.SIGTERM)
    assert node.line() == "SIGTERM"


# Starts a process of another user, so to speak, and says what it took.
WITH_ANOTHER = """
    import signal, subprocess, sys, time
    another = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "another"])
    def take(number, frame):
        another.kill()
        print("SIGTERM", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, take)
    print("up", flush=True)
    time.sleep(600)
"""
REFUSES_ANOTHER = """
import os
kill = os.kill
def refuse(pid, number):
    with open(f"/proc/{pid}/cmdline") as file:
        if file.read().endswith("another\\0"):
            raise PermissionError(1, "Operation not permitted")
    kill(pid, number)
os.kill = refuse
"""


def test_a_process_that_may_not_be_signalled_ends_no_replica(start: Start) -> None:
    """As one below `sudo` or a set-uid program."""
    node = start(WITH_ANOTHER, before=REFUSES_ANOTHER)
    node.process.send_signal(signal.SIGTERM)
    assert node.rest() == ["SIGTERM"]
    assert node.noted["code"] == 3


# Takes a signal while a task runs in another process.
SIGNALLED = """
    import signal, sys, time
    from fray.job import create_job_ctx
    number = signal.Signals[sys.argv[1]]
    signal.signal(number, lambda *_: print("taken", flush=True))
    def work():
        print("up", flush=True)
        time.sleep(3)
        return "done"
    if __name__ == "__main__":
        context = create_job_ctx("process?max_workers=1")
        print(context.get(context.run(work)), flush=True)
"""


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT"])
def test_a_signal_of_a_user_ends_no_task_of_the_program_that_takes_it(start: Start, name: str) -> None:
    node = start(SIGNALLED, name)
    node.process.send_signal(signal.Signals[name])
    assert node.rest() == ["taken", "done"]


def test_a_signal_of_a_user_reaches_a_program_that_waits_for_it(start: Start) -> None:
    node = start(
        """
        import signal, threading
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        threading.Thread(target=lambda: print(signal.sigwait([signal.SIGUSR1]).name, flush=True)).start()
        print("up", flush=True)
        """
    )
    node.process.send_signal(signal.SIGUSR1)
    assert node.rest() == ["SIGUSR1"]


# A supervisor, by its command line, of a job that the program has launched.
LAUNCHES = """
    import signal, subprocess, sys
    from fray.backend import SUPERVISOR_MODULE
    waits = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('taken', flush=True));"
        "print('up', flush=True); time.sleep(3); print('over', flush=True)"
    )
    subprocess.run([sys.executable, "-c", waits, SUPERVISOR_MODULE], check=True)
"""


def test_a_signal_of_a_user_does_not_reach_the_jobs_that_a_job_launched(start: Start) -> None:
    node = start(LAUNCHES)
    node.process.send_signal(signal.SIGUSR1)
    assert node.rest() == ["over"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_signal_of_a_user_that_ends_a_program_ends_it(start: Start, name: str) -> None:
    number = signal.Signals[name]
    code = f"""
        import signal, time
        signal.signal({number:d}, signal.SIG_DFL)
        print("up", flush=True)
        time.sleep(600)
    """
    node = start(code)
    node.process.send_signal(number)
    assert node.rest() == []
    assert node.noted["code"] == -number


# A file that was missed once stays missing, as on NFS for up to a minute, unless this host makes it.
MISSES_FILES = """
import builtins, os, time
missed = {}
def misses(real):
    def find(path, *args, **options):
        makes = real is not stat and not {*"wxa"}.isdisjoint(str(args[:1]))
        if not makes and time.monotonic() < missed.get(path, 0.0):
            raise FileNotFoundError(2, "No such file or directory", path)
        missed.pop(path, None)
        try:
            return real(path, *args, **options)
        except FileNotFoundError:
            missed[path] = time.monotonic() + 60.0
            raise
    return find
stat = os.stat
os.stat, builtins.open = misses(os.stat), misses(builtins.open)
"""


def test_a_stop_is_no_preemption_where_a_host_sees_late_what_another_has_written(start: Start) -> None:
    node = start(COUNTS, 5.0, before=MISSES_FILES)
    record = node.notice.parent
    until(lambda: [*record.rglob("replica-0.attempt-1")], "it has looked whether it is to end", 60)
    node.want_end()
    node.process.send_signal(signal.SIGTERM)
    assert node.rest() == ["SIGTERM"]
    assert "signalled" not in node.noted
    assert not node.notice.exists()


@pytest.mark.parametrize("preempted", [True, False], ids=["preempted", "cancelled"])
def test_the_notice_of_a_preemption_has_all_of_the_partitions_grace(
    recorded: RecordedSlurm, start: Start, preempted: bool
) -> None:
    """Of any other signal that comes long before the end, `KillWait` is what is known."""
    end, now = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + more)) for more in (600, 0))
    why = f"PreemptTime={now}" if preempted else "PreemptTime=None"
    recorded.says(
        "scontrol", f"JobId=7 JobState=RUNNING Reason=None {why} EndTime={end} TimeLimit=1-00:00:00\n"
    )
    node = start(COUNTS, 0.5)
    node.process.send_signal(signal.SIGTERM)
    assert node.rest() == ["SIGTERM"]
    left = float(node.notice.read_text()) - time.time()
    assert 500.0 < left <= 600.0 if preempted else 0.0 < left <= 30.0
