"""What the check for leaks counts: what this session made, and nothing that other programs did."""

import os
import subprocess
import sys
from pathlib import Path

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
