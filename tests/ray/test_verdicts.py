"""How an attempt ended, as its actor reads it where what keeps it is killed meanwhile. Without a cluster."""

import contextlib
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray.testing.gates import until
from fray_ray._on_node.verdict import verdict_in, write_verdict

pytestmark = pytest.mark.timeout(100)
SUPERVISOR = "from fray_ray._on_node.process_supervisor import main; main()"
ENDED: dict[str, object] = {"exit_code": 0, "oom": False, "result": "AAAA"}
KILLED: dict[str, object] = {
    "lost": "the process that kept it was ended by signal 9, and its processes with it"
}


def written(verdict: dict[str, object]) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as words:
        write_verdict(verdict)
    return words.getvalue()


def test_an_attempt_whose_end_was_seen_has_ended_so_though_what_saw_it_is_killed_then() -> None:
    assert verdict_in(written(ENDED), 0) == ENDED
    assert verdict_in(written(ENDED) + written(KILLED), 0) == ENDED
    assert verdict_in("a warning of Python's" + written(ENDED) + written(KILLED), 0) == ENDED


@given(cut=st.integers(0, len(written(ENDED)) - 2))
def test_a_verdict_that_was_cut_off_is_none(cut: int) -> None:
    begun = written(ENDED)[:cut]
    assert verdict_in(begun + written(KILLED), 0) == KILLED
    assert "none has said why" in verdict_in(begun, 0)["lost"]


def test_who_says_nothing_was_killed_and_who_says_something_is_quoted() -> None:
    assert verdict_in("", -9)["lost"] == "the process that was to keep it was ended by signal 9"
    assert verdict_in("Traceback …\nOSError: full", 1)["lost"] == "Traceback …\nOSError: full"


def test_what_keeps_a_replica_is_killed_while_it_says_how_that_ended(tmp_path: Path) -> None:
    """A result is larger than what a pipe holds, so that its writer waits for the reader."""
    (tmp_path / "result").write_bytes(bytes(1_000_000))
    result = os.open(tmp_path / "result", os.O_RDWR)
    private = tmp_path / "private"
    private.mkdir()
    plan = {
        "command": ["sh", "-c", f"echo $PPID > {tmp_path}/draft; mv {tmp_path}/draft {tmp_path}/keeps"],
        "environ": dict(os.environ),
        "cwd": os.fspath(tmp_path),
        "private": os.fspath(private),
        "payload": None,
        "result": result,
        "orphan_grace": 0.0,
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SUPERVISOR]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=[result]) as starter:
        assert starter.stdin is not None
        assert starter.stderr is not None
        words = starter.stderr
        starter.stdin.write(json.dumps(plan).encode() + b"\n")
        starter.stdin.flush()
        until(lambda: unread(words.fileno()) >= 1 << 16, "its verdict fills the pipe")
        os.kill(int((tmp_path / "keeps").read_text()), signal.SIGKILL)
        said = words.read().decode()
    os.close(result)
    assert verdict_in(said, starter.returncode) == KILLED
    assert not private.exists()


def unread(pipe: int) -> int:
    """The bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
