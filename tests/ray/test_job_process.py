"""A job's own process on the head, and the shell that starts it: signals, a full machine. Without Ray."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fray_ray import _entrypoints
from fray_ray._head import job_process
from fray_ray._head.job_process import END, STOP, JobProcess

CODES = {"SIGKILL": (2, 0), "SIGSEGV": (2, 0), "SIGABRT": (2, 0), "SIGTERM": (1, 143)}
# Kills itself at its first start, and ends well at the second.
DIES_ONCE = """#!/bin/sh
echo x >> "$0.starts"
[ $(wc -l < "$0.starts") -gt 1 ] || kill -s {} $$
"""
# Kills itself at each start; the fifth one lives for longer than all others.
DIES = """#!/bin/sh
echo x >> "$0.starts"
[ $(wc -l < "$0.starts") -ne 5 ] || sleep {}
kill -s SEGV $$
"""


@pytest.mark.parametrize(("name", "starts", "code"), [(name, *codes) for name, codes in CODES.items()])
def test_the_process_of_a_job_is_started_again_where_a_signal_killed_it_that_asked_for_no_end(
    tmp_path: Path, name: str, starts: int, code: int
) -> None:
    python = tmp_path / "python"
    python.write_text(DIES_ONCE.format(name.removeprefix("SIG")))
    python.chmod(0o755)
    command = _entrypoints.job_process("train-1", here=False)
    environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(["sh", "-c", command], env=environ, timeout=20, check=False)
    assert (ended.returncode, (tmp_path / "python.starts").read_text().count("x")) == (code, starts)


@pytest.mark.parametrize(("lives", "starts"), [(0, 10), (6, 15)], ids=["at once", "one later"])
def test_the_process_of_a_job_that_dies_at_each_start_is_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lives: int, starts: int
) -> None:
    monkeypatch.setattr(_entrypoints, "_PAUSE", 0)
    python = tmp_path / "python"
    python.write_text(DIES.format(lives))
    python.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = _entrypoints.job_process("train-1", here=False)
    ended = subprocess.run(["sh", "-c", command], env=environ, timeout=60, check=False)
    assert (ended.returncode, (tmp_path / "python.starts").read_text().count("x")) == (139, starts)


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_of_a_job_ends_its_shell(tmp_path: Path, code: int) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {code}\n")
    python.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = _entrypoints.job_process("train-1", here=False)
    assert subprocess.run(["sh", "-c", command], env=environ, timeout=20, check=False).returncode == code


def process_at(path: Path) -> JobProcess:
    """That of a job, in this process, which stands for its shell too."""
    return JobProcess("train-1", os.fspath(path), str(os.getpid()), str(os.getppid()))


def test_a_request_to_end_that_comes_while_the_process_connects_reaches_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Signalled(socket.socket):
        def sendall(self, data: bytes, *_: int) -> None:  # type: ignore[override]
            super().sendall(data)
            links.append(self)
            if data.endswith(END):
                signal.raise_signal(signal.SIGTERM)

    def serve() -> None:
        link, _ = server.accept()
        with link:
            link.settimeout(3)
            try:
                while not b"".join(said).endswith(STOP):
                    said.append(link.recv(1 << 16))
            except TimeoutError:
                said.append(b"nothing came")
            link.sendall(b"exit 0\n")

    said, links = list[bytes](), list[socket.socket]()
    before = signal.getsignal(signal.SIGTERM)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(tmp_path / "scheduler"))
        server.listen()
        scheduler = threading.Thread(target=serve)
        scheduler.start()
        monkeypatch.setattr(socket, "socket", Signalled)
        try:
            assert process_at(tmp_path / "scheduler").run() == 0
        finally:
            signal.signal(signal.SIGTERM, before)
            scheduler.join()
            links[0].close()
    assert b"".join(said).endswith(STOP)


def test_the_process_of_a_job_waits_on_although_it_cannot_start_a_scheduler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file is where the folder of the scheduler's socket is to be: `mkdir` fails, as on a full disk."""
    (tmp_path / "full").touch()
    code = (
        "import sys; from fray_ray._head import job_process as each\n"
        "each._SCHEDULER_WITHIN = 0.0\n"
        "tried, start = [], each.start_scheduler\n"
        "def note(path):\n    tried.append(1); start(path)\n    if len(tried) > 2: sys.exit(5)\n"
        "each.start_scheduler = note\n"
        "each.JobProcess(*sys.argv[1:]).run()\n"
    )
    words = ["train-1", os.fspath(tmp_path / "full" / "socket"), str(os.getpid()), str(os.getppid())]
    ended = subprocess.run([sys.executable, "-c", code, *words], timeout=60, check=False)
    assert ended.returncode == 5, "it has tried again and again"


def test_a_connection_that_the_scheduler_closes_at_once_is_not_made_again_at_once(tmp_path: Path) -> None:
    """As where it cannot take the job up now: each try costs the loop of all jobs."""
    with socket.socket(socket.AF_UNIX) as server:
        path = os.fspath(tmp_path / "scheduler")
        server.bind(path)
        server.listen()
        server.settimeout(20)
        command = [sys.executable, "-I", "-S", job_process.__file__, "train-1", path]
        with subprocess.Popen([*command, str(os.getpid()), str(os.getppid())]) as process:
            try:
                moments = []
                for _ in range(6):
                    with server.accept()[0] as link:
                        while not link.recv(1 << 20).endswith(END):
                            continue
                        moments.append(time.monotonic())
                assert moments[-1] - moments[0] > 0.9
            finally:
                process.kill()


def test_what_starts_a_scheduler_ends_where_the_head_does_not_answer() -> None:
    """Ray connects again and again; the process would outlive its cluster, which nothing ends it with."""
    start = "from fray_ray._head import start_scheduler as it; it._ENDS_WITHIN = 5; it.main()"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        environ = {**os.environ, "RAY_ADDRESS": f"127.0.0.1:{mute.getsockname()[1]}"}
        ended = subprocess.run(
            [sys.executable, "-c", start], env=environ, timeout=60, check=False, capture_output=True
        )
    assert ended.returncode == -signal.SIGALRM, ended.stderr
