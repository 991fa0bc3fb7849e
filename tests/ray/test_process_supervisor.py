"""Who and what is left when the process that keeps an attempt is killed; nothing here needs a cluster."""

import base64
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fray.backend import payload_of, runner
from fray.cluster import Entrypoint
from fray.testing.cluster_fixtures import running
from fray.testing.gates import until
from fray_ray._on_node.memory_file import memory_files

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
print("up", flush=True)
note("program", os.getpid())
time.sleep(600)
"""


def start(
    folder: Path, command: list[str], payload: bytes | None = None, *, returns: bool = False
) -> "subprocess.Popen[bytes]":
    """Start a supervisor as the actor of a replica does; `FILES` in a command is what is handed over."""
    (folder / "private").mkdir()
    pipe = subprocess.PIPE
    with memory_files(payload, b"" if returns else None) as files:
        held = [file for file in files if file is not None]
        words = [f"fd:{file}" for file in held]
        plan = {
            "command": [each for word in command for each in (words if word == "FILES" else [word])],
            "cwd": os.fspath(folder),
            "environ": dict(os.environ),
            "private": os.fspath(folder / "private"),
            "payload": files[0],
            "result": files[1],
            "orphan_grace": 0.0,
        }
        started = subprocess.Popen(
            [sys.executable, "-c", START], stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=held
        )
    assert started.stdin is not None
    started.stdin.write(json.dumps(plan).encode() + b"\n")
    started.stdin.flush()
    return started


def start_family(folder: Path) -> tuple["subprocess.Popen[bytes]", dict[str, int]]:
    """Start a supervisor of a program with a daemon; return it, and the processes that there are."""
    started = start(folder, [sys.executable, "-c", PROGRAM, os.fspath(folder)])
    until((folder / "program").exists, "the program runs")
    return started, {name: int((folder / name).read_text()) for name in ("supervisor", "daemon", "program")}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_a_replica_started_ends_with_the_process_that_keeps_it(tmp_path: Path) -> None:
    started, processes = start_family(tmp_path)
    os.kill(processes["supervisor"], signal.SIGKILL)
    assert started.stdin is not None
    output, verdict = started.communicate(timeout=200)
    assert output == b"up\n"
    assert "ended by signal 9" in json.loads(verdict)["lost"]
    until(lambda: not any(map(running, processes.values())), "no process is left")
    assert not (tmp_path / "private").exists()


def test_it_is_stopped_as_before_when_its_guardian_is_killed(tmp_path: Path) -> None:
    started, processes = start_family(tmp_path)
    os.kill(parent_of(processes["supervisor"]), signal.SIGKILL)
    assert started.stdin is not None
    started.stdin.write(b"stop 0\n")
    started.stdin.flush()
    output, verdict = started.communicate(timeout=200)
    assert (output, json.loads(verdict)["exit_code"]) == (b"up\n", -9)
    until(lambda: not any(map(running, processes.values())), "no process is left")


SECRET = "8c1f7e-of-the-payload"


def call_of(function: Any, *args: Any) -> bytes:
    payload = payload_of(Entrypoint.from_callable(function, list(args)), [])
    assert payload is not None
    return payload


def has_memory_files(pid: int) -> bool:
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            if "memfd" in str(each.readlink()):
                return True
    return False


def files_with_the_secret(folder: Path) -> list[Path]:
    found = []
    for path in (Path(place, name) for place, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(OSError):  # it has just been renamed
            found += [path] if path.is_file() and SECRET.encode() in path.read_bytes() else []
    return found


@pytest.mark.parametrize(
    "killed", ["program", "supervisor", "guardian", "supervisor guardian", "guardian supervisor program"]
)
def test_what_is_handed_over_is_in_no_file_whichever_process_is_killed(tmp_path: Path, killed: str) -> None:
    def note_and_wait(folder: Path, secret: str) -> None:
        import os
        import time
        from pathlib import Path

        Path(folder, "draft").write_text(f"{os.getpid()} {os.getppid()} {len(secret)}")
        Path(folder, "draft").rename(Path(folder, "up"))
        time.sleep(600)

    payload = call_of(note_and_wait, tmp_path, SECRET)
    assert SECRET.encode() in payload
    started = start(tmp_path, [sys.executable, runner.__file__, "FILES"], payload)
    until((tmp_path / "up").exists, "the program runs")
    program, supervisor, length = map(int, (tmp_path / "up").read_text().split())
    assert length == len(SECRET)
    pids = {"program": program, "supervisor": supervisor, "guardian": parent_of(supervisor)}
    until(lambda: not any(map(has_memory_files, pids.values())), "what was read is freed")
    assert not files_with_the_secret(tmp_path)
    for name in killed.split():
        with contextlib.suppress(ProcessLookupError):  # it ended with the one before
            os.kill(pids[name], signal.SIGKILL)
    assert started.stdin is not None
    started.stdin.close()  # its parent is gone, too
    started.stdin = None
    started.communicate(timeout=200)
    until(lambda: not any(map(running, pids.values())), "no process is left")
    assert not files_with_the_secret(tmp_path)


def test_what_a_function_returns_or_raises_is_handed_back_without_a_file(tmp_path: Path) -> None:
    def returns() -> str:
        return SECRET

    def fails() -> None:
        raise ValueError(SECRET)

    def returns_what_no_pickle_can() -> object:
        import threading

        return SECRET, threading.Lock()

    words = {"returned": SECRET, "raised": SECRET, "unpicklable": "what the function returned"}
    for (case, word), function in zip(
        words.items(), (returns, fails, returns_what_no_pickle_can), strict=True
    ):
        folder = tmp_path / case
        folder.mkdir()
        command = [sys.executable, runner.__file__, "FILES"]
        with start(folder, command, call_of(function), returns=True) as started:
            assert started.stderr is not None
            verdict = started.stderr.read()
        result = base64.b64decode(json.loads(verdict)["result"])
        assert result.startswith(pickle.dumps("returned" if case == "returned" else "raised"))
        assert word.encode() in result
        assert not files_with_the_secret(folder)


def test_programs_that_a_function_starts_do_not_hold_its_result(tmp_path: Path) -> None:
    def lists_what_is_open() -> str:
        import subprocess

        listing = ["ls", "-l", "/proc/self/fd"]
        return subprocess.run(listing, close_fds=False, capture_output=True, text=True, check=True).stdout

    command = [sys.executable, runner.__file__, "FILES"]
    with start(tmp_path, command, call_of(lists_what_is_open), returns=True) as started:
        assert started.stderr is not None
        verdict = started.stderr.read()
    result = base64.b64decode(json.loads(verdict)["result"])
    assert result.startswith(pickle.dumps("returned"))
    assert b"pipe:" in result
    assert b"memfd" not in result
