"""`fray prune` and `fray rm`: what goes, how much it is, and what stays."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import answer, fray

from fray.testing.gates import until


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A job with a snapshot of 1 MB and a log of 100 kB, and a child."""
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?overcommit=true")
    work = tmp_path / "work"
    work.mkdir()
    (work / "data").write_bytes(b"x" * 1_000_000)
    (work / "child.py").write_text(
        "from fray import Entrypoint, JobRequest, current_cluster\n"
        "cluster = current_cluster()\n"
        "print('y' * 100_000)\n"
        "cluster.wait(cluster.launch(JobRequest('child', Entrypoint(binary='true'))))\n"
    )
    fray("run", "--name", "job", "--snapshot", "child.py", cwd=work)
    found: str = answer("list")[0]["job_id"]
    # A job has ended a moment before its supervisor has, and is pruned after both.
    until(lambda: answer("prune", "--dry-run", "--older-than", "0s")["jobs"] == [found], "it can go")
    return found


def test_a_dry_run_says_what_would_go_by_kind_and_nothing_goes(job: str) -> None:
    would = answer("prune", "--dry-run", "--older-than", "0s")
    assert would["jobs"] == [job]
    sizes = would["sizes"]
    assert 1_000_000 <= sizes["snapshots"] < 1_100_000
    assert 100_000 <= sizes["logs"] < 110_000
    assert 0 < sizes["records"] < 100_000
    assert would["size"] == sum(sizes.values())
    text = fray("prune", "--dry-run", "--older-than", "0s").stdout
    assert text.startswith("1 jobs, 0 environments, 1.0")
    assert "snapshots 97" in text
    assert len(answer("list")) == 2
    assert answer("prune", "--dry-run", "--older-than", "1h")["jobs"] == []


def test_what_goes_is_what_the_dry_run_said(job: str, state_dir: Path) -> None:
    would = answer("prune", "--dry-run", "--older-than", "0s")
    assert answer("prune", "--older-than", "0s") == would
    assert answer("list") == []
    assert not (state_dir / "jobs" / job).exists()


def read_the_question(terminal: int) -> bytes:
    """Return what a terminal shows, when it asks."""
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(terminal, 4096)
    return shown


@pytest.mark.parametrize(("reply", "left"), [("n", 2), ("y", 0)])
def test_on_a_terminal_it_asks_first(job: str, reply: str, left: int) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fray", "prune", "--older-than", "0s"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as cli:
        os.close(theirs)
        shown = read_the_question(ours)
        os.write(ours, f"{reply}\n".encode())
        cli.wait(timeout=30)
    os.close(ours)
    assert b"1 jobs, 0 environments" in shown
    assert b"snapshots" in shown
    assert len(answer("list")) == left
    assert cli.returncode == (0 if reply == "y" else 1)


def test_it_asks_where_only_its_output_is_piped(job: str) -> None:
    """`fray prune | tee log` shows the question, and removes nothing without an answer."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fray", "prune", "--older-than", "0s"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as cli:
        os.close(theirs)
        read_the_question(ours)
        os.write(ours, b"n\n")
        assert cli.stdout is not None
        assert b"1 jobs, 0 environments" in cli.stdout.read()
    os.close(ours)
    assert cli.returncode == 1
    assert len(answer("list")) == 2


def test_what_ends_while_it_asks_is_not_removed_unseen(job: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fray", "prune", "--older-than", "0s"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs) as cli:
        os.close(theirs)
        read_the_question(ours)
        fray("run", "--name", "later", "--", "true")
        os.write(ours, b"y\n")
        assert cli.wait(timeout=30) == 0
    os.close(ours)
    assert [each["name"] for each in answer("list")] == ["later"]


def test_rm_takes_the_beginning_of_an_id_and_refuses_what_runs(job: str) -> None:
    fray("run", "--detach", "--name", "sleeper", "--", "sleep", "600")
    assert "terminate it before" in fray("rm", "sleeper", code=2).stderr
    fray("rm", "job")
    assert [each["name"] for each in answer("list")] == ["sleeper"]
    fray("stop", "sleeper")


def test_rm_of_a_job_and_of_what_goes_with_it_removes_both(job: str) -> None:
    child = next(each["job_id"] for each in answer("list") if each["name"] == "child")
    assert answer("rm", job, child, job) == [job, child, job]
    assert answer("list") == []
