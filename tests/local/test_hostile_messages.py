"""Bytes that are no message, sent to a job's supervisor or to a shared actor: they change nothing."""

import json
import os
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fray import create_context
from fray.cluster import JobStatus, create_cluster
from fray.testing.cluster import launch, program
from fray.testing.command_line import main
from fray.testing.gates import until

DRAWN = settings(
    max_examples=100 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WORDS = st.sampled_from(
    ["", "stop", "preempt", "restart", "granted", "look", "0", "1", "-1", "nan", "x", "9" * 400]
)
LINES = (
    st.lists(WORDS, max_size=5).map(" ".join).filter(lambda line: not is_request(line)).map(str.encode)
) | st.binary(max_size=30).map(lambda data: b"\xff" + data.replace(b"\n", b""))


def is_request(line: str) -> bool:
    """Whether a line is `stop SECONDS` or `restart REPLICA ATTEMPT SECONDS`, and so is to be obeyed."""
    word, *values = line.split() or [""]
    numbers = {"stop": 1, "preempt": 3, "restart": 3}.get(word)
    return numbers is not None and all(value.lstrip("-").isdecimal() for value in values[:numbers])


@pytest.mark.parametrize("file", ["control", "restarts"])
def test_lines_that_are_no_request_to_a_supervisor(state_dir: Path, tmp_path: Path, file: str) -> None:
    cluster, gate = create_cluster("local?overcommit=true"), tmp_path / "go"
    waiting = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)"
    job_id = launch(cluster, program(waiting))
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it runs", 60)
    path = state_dir / "jobs" / job_id / file

    @DRAWN
    @given(LINES)
    def send(line: bytes) -> None:
        flags = os.O_NONBLOCK if file == "control" else os.O_CREAT | os.O_APPEND
        written = os.open(path, os.O_WRONLY | flags, 0o600)  # of the pipe: fails once no supervisor reads it
        os.write(written, line + b"\n")
        os.close(written)

    send()
    if file == "restarts":
        until(lambda: not path.exists(), "the supervisor has read them", 60)
    gate.touch()
    info = cluster.wait(job_id, timeout=60)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1), info.error_message


class Tally:
    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total


# The length of a pickle, a number of descriptors, the type of a message; then a pickle that is none.
FRAMES = st.builds(
    lambda body, descriptors, kind: struct.pack("<QHB", len(body), descriptors, kind) + body,
    st.binary(min_size=1, max_size=30),
    st.integers(0, 3),
    st.integers(0, 255),
)


def test_bytes_at_the_socket_of_a_shared_actor(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_context("process", max_workers=1) as context:
        tally = context.create_actor(Tally, name="tally", lifetime="detached")
        assert context.get(tally.add(1)) == 1
        (path,), (log,) = state_dir.glob("**/*.sock"), state_dir.glob("**/*.log")
        monkeypatch.chdir(path.parent)  # whose own path may be too long for a socket

        @DRAWN
        @example(struct.pack("<QHB", 1, 0, 0) + b"x")  # a frame that is whole, and no pickle
        @given(FRAMES | st.binary(max_size=40))
        def send(data: bytes) -> None:
            with socket.socket(socket.AF_UNIX) as sock, suppress(ConnectionError):
                sock.settimeout(60)
                sock.connect(path.name)
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):  # until the actor hangs up
                    pass

        send()
        assert context.get(tally.add(1)) == 2

        with create_context("process", max_workers=1) as other:
            assert other.get(other.get_actor("tally").add(1)) == 3
        written = log.read_text()
        context.kill(tally)
    assert written == ""


def test_records_of_shared_actors_that_were_damaged(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with create_context("process", max_workers=1) as context:
        tally = context.create_actor(Tally, name="tally", lifetime="detached")
        assert context.get(tally.add(1)) == 1
        (path,) = state_dir.glob("actors/*/*.json")
        whole = path.read_bytes()

        @DRAWN
        @example(0.0, 1.0, b'{"name": ' * 3000)
        @example(0.0, 1.0, re.sub(rb'"created_at": [\d.]+', b'"created_at": null', whole))
        @given(st.floats(0, 1), st.floats(0, 1), st.binary(max_size=20))
        def damage(first: float, second: float, splice: bytes) -> None:
            start, end = sorted((int(first * len(whole)), int(second * len(whole))))
            path.with_name("other.json").write_bytes(whole[:start] + splice + whole[end:])
            assert main(["actors", "list", "--json"]) == 0
            assert "tally" in {row["name"] for row in json.loads(capsys.readouterr().out)}

        damage()
        context.kill(tally)
