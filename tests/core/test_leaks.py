"""What the check for leaks counts: what this session made, and nothing that other programs did."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fray.testing.gates import until
from fray.testing.leaks import remaining, snapshot

RUN = """
import pathlib, tempfile
from fray.testing.leaks import own_temporary_folder, remaining, snapshot


def left():
    before = snapshot()
    (pathlib.Path(tempfile.gettempdir()) / "new").touch()
    return [line.rpartition("/")[2] for line in remaining(before, patience=0.0)]


def test_files_of_a_folder_that_others_write_to_are_not_counted():
    assert left() == []


def test_files_of_a_folder_of_the_sessions_own_are_counted(own_temporary_folder):
    assert left() == ["new"]
"""


def test_files_are_counted_in_a_folder_of_the_sessions_own_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(RUN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_a_library_keeps_for_itself_is_not_counted(tmp_path: Path) -> None:
    before = snapshot()
    with (tmp_path / "kept").open("w") as kept, (tmp_path / "left").open("w") as left:
        kept_line, left_line = (f"file {file.fileno()} -> {file.name}" for file in (kept, left))
        assert remaining(before, patience=0.0) == {kept_line, left_line}
        assert remaining(before, patience=0.0, kept=lambda: {kept_line}) == {left_line}


def test_a_process_that_was_there_before_may_become_another_program() -> None:
    becomes = "import os, sys; sys.stdin.readline(); os.execvp('sleep', ['sleep', '600'])"
    with subprocess.Popen([sys.executable, "-c", becomes], stdin=subprocess.PIPE, text=True) as child:
        command = Path(f"/proc/{child.pid}/cmdline")
        before = snapshot()
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        until(lambda: command.read_bytes().startswith(b"sleep"), "it is another program")
        assert remaining(before, patience=0.0) == set()
        child.kill()


def test_what_ends_has_as_long_as_the_collector_which_lets_no_other_thread_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, collecting = 100.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def collect() -> int:
        nonlocal collecting
        sleep(0.9)
        collecting += 0.9
        return 0

    before, go = snapshot(), threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("fray.testing.leaks.time.monotonic", lambda: now)
            patch.setattr("fray.testing.leaks.time.sleep", sleep)
            patch.setattr("fray.testing.leaks.gc.collect", collect)
            assert len(remaining(before, patience=10.0)) == 1
    finally:
        go.set()
        thread.join()
    assert 10.0 < now - 100.0 < 11.0
    assert 0.9 < collecting < 6.0  # again and again, and not all the time
