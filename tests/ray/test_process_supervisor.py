"""Who is left when the process that keeps an attempt of a replica is killed; nothing here needs a cluster."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from fray.testing.cluster_fixtures import running
from fray.testing.gates import until

START = "from fray_ray._on_node.process_supervisor import main; main()"
# Notes its supervisor, itself, and a daemon with a session and an environment of its own.
PROGRAM = """
import os, subprocess, sys, time
folder = sys.argv[1]
def note(name, pid):
    with open(f"{folder}/draft-{name}", "w") as file:
        file.write(str(pid))
    os.rename(f"{folder}/draft-{name}", f"{folder}/{name}")
child = subprocess.Popen(["env", "-i", "sleep", "600"], start_new_session=True)
note("supervisor", os.getppid())
note("daemon", child.pid)
note("program", os.getpid())
print("up", flush=True)
time.sleep(600)
"""


def start(folder: Path) -> tuple["subprocess.Popen[bytes]", dict[str, int]]:
    """Start a supervisor as the actor of a replica does; return it, and the processes that there are."""
    (folder / "private").mkdir()
    plan = {
        "command": [sys.executable, "-c", PROGRAM, os.fspath(folder)],
        "cwd": os.fspath(folder),
        "environ": dict(os.environ),
        "private": os.fspath(folder / "private"),
        "result": None,
        "orphan_grace": 0.0,
    }
    pipe = subprocess.PIPE
    started = subprocess.Popen([sys.executable, "-c", START], stdin=pipe, stdout=pipe, stderr=pipe)
    assert started.stdin is not None
    started.stdin.write(json.dumps(plan).encode() + b"\n")
    started.stdin.flush()
    until((folder / "program").exists, "the program runs")
    return started, {name: int((folder / name).read_text()) for name in ("supervisor", "daemon", "program")}


def test_what_a_replica_started_ends_with_the_process_that_keeps_it(tmp_path: Path) -> None:
    started, processes = start(tmp_path)
    os.kill(processes["supervisor"], signal.SIGKILL)
    assert started.stdin is not None
    output, verdict = started.communicate(timeout=60)
    assert output == b"up\n"
    assert "ended by signal 9" in json.loads(verdict)["lost"]
    until(lambda: not any(map(running, processes.values())), "no process is left")
    assert not (tmp_path / "private").exists()


def test_it_is_stopped_as_before_when_its_guardian_is_killed(tmp_path: Path) -> None:
    started, processes = start(tmp_path)
    stat = Path(f"/proc/{processes['supervisor']}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert started.stdin is not None
    started.stdin.write(b"stop 0\n")
    started.stdin.flush()
    output, verdict = started.communicate(timeout=60)
    assert (output, json.loads(verdict)["exit_code"]) == (b"up\n", -9)
    until(lambda: not any(map(running, processes.values())), "no process is left")
