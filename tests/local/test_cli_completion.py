"""Completion in real shells, with job ids."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import fray


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH that has `fray`, as the test's interpreter runs it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "fray"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fray "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def complete_in_bash(*words: str) -> list[str]:
    """Let bash complete the last word, by what `fray completion bash` prints."""
    program = f"""
        eval "$(fray completion bash)"
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words) - 1}
        _fray_completion fray
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_verbs_options_and_ids(path: Path) -> None:
    first, second = (
        fray("run", "--detach", "--name", name, "--", "true").stdout.strip() for name in ("train", "other")
    )
    fray("wait", first, second)
    assert complete_in_bash("fray", "sta") == ["status"]
    assert "--snapshot" in complete_in_bash("fray", "run", "--sn")
    assert complete_in_bash("fray", "status", "tr") == [first]
    assert complete_in_bash("fray", "stop", "") == [second, first]
    assert complete_in_bash("fray", "run", "--after", "oth") == [second]
    assert complete_in_bash("fray", "status", "nosuch") == []


def test_a_cluster_that_cannot_be_asked_completes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "nosuch")
    assert complete_in_bash("fray", "status", "tr") == []
