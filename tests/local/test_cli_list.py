"""`fray list` and the words by which a job is found."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import answer, fray

PARENT = """
from fray import Entrypoint, JobRequest, current_cluster
cluster = current_cluster()
ids = [cluster.launch(JobRequest(name, Entrypoint(binary="true"))) for name in ("rollout", "eval")]
cluster.wait(ids)
"""


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A parent with two children, a failure, and one more, by what they are called."""
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?overcommit=true")
    fray("run", "--name", "train", "--label", "team=nlp", "--", "python", "-c", PARENT)
    fray("run", "--name", "prepare", "--label", "team=vision", "--label", "x=1", "--", "false", code=1)
    fray("run", "--name", "prepare", "--", "true")
    ids = [job["job_id"] for job in answer("list")]
    train, rollout, evaluation = sorted(ids[:1]) + ids[1:3]
    return {"train": train, "rollout": rollout, "eval": evaluation, "bad": ids[3], "good": ids[4]}


def listed(*argv: str) -> list[str]:
    return [job["job_id"] for job in answer("list", *argv)]


def test_by_name_label_status_age_and_parent(jobs: dict[str, str]) -> None:
    assert listed("--name", "prep*") == [jobs["bad"], jobs["good"]]
    assert listed("--name", jobs["good"]) == [jobs["good"]]
    assert listed("--label", "team=nlp") == [jobs["train"]]
    assert listed("--label", "team=*") == [jobs["train"], jobs["bad"]]
    assert listed("--label", "team=vision", "--label", "x=1") == [jobs["bad"]]
    assert listed("--status", "failed") == [jobs["bad"]]
    assert set(listed("--status", "failed", "--status", "succeeded")) == set(jobs.values())
    assert len(listed("--since", "1h")) == 5
    assert listed("--since", "0s") == []
    assert sorted(listed("--parent", "train")) == sorted([jobs["rollout"], jobs["eval"]])


def test_how_many_and_in_which_order(jobs: dict[str, str]) -> None:
    assert listed("--limit", "2") == [jobs["bad"], jobs["good"]]
    assert listed("--limit", "0") == []
    assert listed("--sort", "-submitted")[0] == jobs["good"]
    assert listed("--sort", "status")[-1] == jobs["bad"]
    names = [job["name"] for job in answer("list", "--sort", "name")]
    assert names == sorted(names)
    assert "sort must be one of" in fray("list", "--sort", "size", code=2).stderr
    assert "KEY=VALUE" in fray("list", "--label", "team", code=2).stderr


@pytest.mark.parametrize("start", ["train", "tr"])
def test_a_parent_is_addressed_although_its_children_share_its_prefix(
    jobs: dict[str, str], start: str
) -> None:
    assert answer("status", start)["job_id"] == jobs["train"]
    assert answer("status", jobs["train"][:-2])["job_id"] == jobs["train"]


def test_a_child_by_its_own_name_by_its_parents_or_by_the_end_of_its_id(jobs: dict[str, str]) -> None:
    child = jobs["rollout"]
    ending = child.rpartition("-")[2]
    for text in ("roll", "train/roll", f"{jobs['train']}/ro", ending, f"train/{ending}", child):
        assert answer("status", text)["job_id"] == child, text


def test_an_ambiguous_beginning_lists_what_it_fits(jobs: dict[str, str]) -> None:
    err = fray("status", "prep", code=2).stderr
    assert "'prep' fits 2 jobs" in err
    assert [line.split() for line in err.splitlines()[-2:]] == [
        [jobs["bad"], "failed"],
        [jobs["good"], "succeeded"],
    ]
    assert "no job 'nosuch' on the cluster 'local" in fray("status", "nosuch", code=1).stderr
    assert "`fray list` shows its jobs" in fray("status", "nosuch", code=1).stderr
    assert "no job 'train/nosuch'" in fray("status", "train/nosuch", code=1).stderr


def on_a_terminal(*argv: str, columns: int = 80) -> list[str]:
    """Run a verb on a terminal of some width, and return its lines without colours."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-m", "fray", *argv], stdout=theirs, env=environ):
        os.close(theirs)
        text = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not read:
                break
            text += read
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).replace("\r", "").splitlines()


def test_a_job_is_one_row_on_80_columns_and_is_found_by_what_that_shows(tmp_path: Path) -> None:
    name = "executor:" + "a-step-with-a-long-name-" * 4
    fray("run", "--name", name, "--", "sh", "-c", "echo 日本日本; no-such-program-at-all", code=127)
    lines = on_a_terminal("list")
    assert len(lines) == 1 + 6
    assert max(map(len, lines)) <= 80
    shown = lines[-1].split()[0]
    assert "…" in shown
    assert answer("status", shown)["name"] == name
    (full,) = [job["job_id"] for job in answer("list", "--name", "executor*")]
    assert full in fray("list").stdout  # a pipe gets all of it


def test_status_says_everything(jobs: dict[str, str], tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    argv = [
        "--retries",
        "1",
        "-e",
        "TOKEN=s3cret-s3cret",
        "--label",
        "a=b",
        "--after",
        "train",
        "--cpu",
        "0.5",
    ]
    fray("run", "--name", "all", *argv, "--", "sh", "-c", "kill -9 $$", cwd=work, code=137)
    out = fray("status", "all").stdout
    facts = dict(re.findall(r"^  (\w+) +(.*)$", out, re.MULTILINE))
    assert facts["command"] == "sh -c 'kill -9 $$'"
    assert facts["directory"] == str(work)
    assert facts["labels"] == "a=b"
    assert facts["environment"] == "variables TOKEN"
    assert facts["after"] == jobs["train"]
    assert facts["asked"].startswith("0.5 CPU, 1 GiB")
    assert "of memory at the most" in facts["used"]
    assert "waited" in facts["started"]
    assert facts["user"]
    assert "s3cret" not in out
    attempts = [line.split()[:5] for line in out.splitlines() if re.match(r"\d ", line)]
    assert attempts == [["0", str(n), "failed", "-9", "signalled"] for n in (1, 2)]
    parent = fray("status", "train").stdout
    assert jobs["rollout"] in parent
    assert jobs["eval"] in parent
