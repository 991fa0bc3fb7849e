"""Sweeps from the command line: what runs, what is refused, how they are read, stopped and run again."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import answer, fray

from fray.testing.cluster import until

PROGRAM = """
import os, pathlib, sys
print(*sys.argv[1:], os.environ.get("FRAY_PARAM_SEED"), os.environ["FRAY_SWEEP_INDEX"])
if pathlib.Path("bad").exists() and os.environ["FRAY_PARAM_SEED"] == "1":
    sys.exit(3)
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?overcommit=true")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(PROGRAM)
    (work / "steps.py").write_text("def step(lr, seed=0): print('step', repr(lr), repr(seed))\n")
    return work


def planned(work: Path, *argv: str) -> list[str]:
    """What each run of a sweep would run, without the program."""
    shown = answer("run", "--dry-run", *argv, cwd=work)
    return [each["entrypoint"].removeprefix("python train.py ") for each in shown]


@pytest.mark.parametrize(
    ("axes", "runs"),
    [
        (["--sweep", "a=1,x"], ["1", "x"]),
        (["--sweep", "a=0..2"], ["0", "1", "2"]),
        (["--sweep", "a=2..0,7"], ["2", "1", "0", "7"]),
        (["--sweep", "a=0..10..5"], ["0", "5", "10"]),
        (["--sweep", "a=1e-3,0.5"], ["1e-3", "0.5"]),
        (["--sweep", 'a=["1,2", 3, [4]]'], ["1,2", "3", "'[4]'"]),
        (["--sweep", "a=x=1,y=2"], ["x=1", "y=2"]),
    ],
)
def test_the_values_of_an_axis(work: Path, axes: list[str], runs: list[str]) -> None:
    assert planned(work, *axes, "train.py", "{a}") == runs


def test_axes_are_combined_and_zipped_ones_go_together(work: Path) -> None:
    axes = ["--sweep", "a=1,2", "--zip", "b=x,y", "--zip", "c=3..4"]
    assert planned(work, *axes, "train.py", "{a}{b}", "{c}") == ["1x 3", "1y 4", "2x 3", "2y 4"]
    assert planned(work, "--sweep", "a=1,2", "--sweep", "b=3,4", "train.py", "{b}{a}") == [
        *("31", "41", "32", "42"),
    ]
    assert planned(work, "--sweep", "a=1,2", "train.py", "{{a}}", "{ a }", "{}") == ["'{a}' '{ a }' '{}'"] * 2


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--sweep", "lr=1", "train.py", "{lrr}"], "{lrr} is not a parameter of the sweep, which has lr"),
        (["--sweep", "lr=1", "-e", "A={lrr}", "train.py"], "{lrr} is not a parameter"),
        (["--sweep", "lr", "train.py"], "NAME=VALUE,VALUE"),
        (["--sweep", "lr=", "train.py"], "has no value"),
        (["--sweep", "lr=1,,2", "train.py"], "an empty one"),
        (["--sweep", "lr=[1,", "train.py"], "JSON list"),
        (["--sweep", "lr=0..5..-1", "train.py"], "has no end"),
        (["--sweep", "lr=0..10000000000", "train.py"], "more than the 10000"),
        (["--sweep", f"lr=0..{'9' * 5000}", "train.py"], "a number of too many digits"),
        (["--sweep", "a=0..999", "--sweep", "b=0..999", "train.py"], "the sweep has 1000000 runs"),
        (["--sweep", "lr=1", "--sweep", "lr=2", "train.py"], "'lr' is swept twice"),
        (["--sweep", "lr=1", "--zip", "LR=2", "train.py"], "are one variable"),
        (["--zip", "a=1,2", "--zip", "b=1", "train.py"], "got a 2, b 1"),
        (["--max-parallel", "2", "train.py"], "--max-parallel is of a sweep"),
        (["--sweep", "lr=x", "steps:step", "--arg", "lrr={lr}"], "missing a required argument: 'lr'"),
        (["--sweep", "lr=1", "tain.py"], "there is no file tain.py"),
    ],
)
def test_what_is_no_sweep_is_refused_before_anything_starts(work: Path, argv: list[str], told: str) -> None:
    assert told in fray("run", *argv, cwd=work, code=2).stderr
    assert answer("list") == []


def test_a_sweep_is_followed_listed_and_read_as_one(work: Path) -> None:
    argv = ["--sweep", "lr=0.1,0.01", "--sweep", "seed=0..1", "--max-parallel", "2"]
    done = fray("run", *argv, "--label", "team=nlp", "train.py", "--lr", "{lr}", cwd=work)
    lines = [
        f"[{n}] --lr {lr} {seed} {n}"
        for n, (lr, seed) in enumerate((x, y) for x in (0.1, 0.01) for y in (0, 1))
    ]
    assert sorted(done.stdout.splitlines()) == sorted(lines)
    (sweep,) = answer("list")
    assert (sweep["name"], sweep["status"], sweep["progress"]["succeeded"]) == ("train", "succeeded", 4)
    assert sweep["labels"] == {"team": "nlp"}
    (row,) = fray("list").stdout.splitlines()[1:]
    assert row.split()[:3] == [sweep["job_id"], "succeeded", "4/4"]
    status = fray("status", "train").stdout
    table = status[status.index("member ") :].splitlines()
    assert table[0].split() == ["member", "status", "lr", "seed", "ran", "message"]
    assert [line.split()[:4] for line in table[1:]] == [
        [str(n), "succeeded", lr, seed]
        for n, (lr, seed) in enumerate([(x, y) for x in ("0.1", "0.01") for y in "01"])
    ]
    shown = answer("status", "train")
    assert [member["labels"]["seed"] for member in shown["members"]] == ["0", "1", "0", "1"]
    member = answer("status", "train/2")
    assert (member["name"], member["sweep"]) == ("train lr=0.01 seed=0", sweep["job_id"])
    assert fray("logs", "train/2").stdout == "--lr 0.01 0 2\n"
    assert [job["job_id"] for job in answer("list", "--parent", "train", "--label", "seed=1")] == [
        f"{sweep['job_id']}/{n}" for n in (1, 3)
    ]


def test_only_the_failed_ones_run_again(work: Path) -> None:
    (work / "bad").touch()
    done = fray("run", "--sweep", "seed=0..2", "train.py", cwd=work, code=1)
    assert "1 of 3 members failed" in done.stderr
    assert "2 succeeded, 1 failed" in fray("status", "train").stdout
    (work / "bad").unlink()
    (again,) = json.loads(fray("retry", "--json", "train").stdout)
    assert again["status"] in ("pending", "running", "succeeded")
    fray("wait", "train")
    attempts = {each["job_id"].rpartition("/")[2]: each["tasks"][0]["attempt"] for each in members()}
    assert attempts == {"0": 1, "1": 2, "2": 1}
    assert "there is nothing to run again" in fray("retry", "train", code=2).stderr


def members() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer("status", "train")["members"]
    return found


def test_a_sweep_is_stopped_as_one_and_what_was_stopped_runs_again(work: Path) -> None:
    argv = ["--detach", "--name", "train", "--sweep", "seed=0..3", "--max-parallel", "1"]
    sweep = fray("run", *argv, "--", "sh", "-c", "test -e go || sleep 600", cwd=work).stdout.strip()
    until(lambda: answer("status", "train/0")["status"] == "running", "the first one runs")
    assert fray("stop", "train").stdout == f"{sweep}  stopped\n"
    assert {each["status"] for each in members()} == {"stopped"}
    (work / "go").touch()
    fray("restart", "train")
    fray("wait", "train")
    assert {each["status"] for each in members()} == {"succeeded"}


def test_a_function_with_swept_arguments(work: Path) -> None:
    done = fray(
        "run", "--sweep", "lr=0.1,warm", "steps:step", "--arg", "lr={lr}", "--arg", "seed=7", cwd=work
    )
    assert sorted(done.stdout.splitlines()) == ["[0] step 0.1 7", "[1] step 'warm' 7"]


def test_a_key_makes_a_sweep_once(work: Path) -> None:
    argv = ["--detach", "--key", "once", "--sweep", "seed=0..1", "train.py"]
    assert fray("run", *argv, cwd=work).stdout == fray("run", *argv, cwd=work).stdout
    fray("wait", "train")
    assert len(answer("list")) == 1


def test_a_name_and_variables_may_have_placeholders(work: Path) -> None:
    argv = ["--name", "probe-{seed}", "--sweep", "seed=1,2", "-e", "DOUBLE={seed}{seed}"]
    done = fray("run", *argv, "--", "sh", "-c", "echo $DOUBLE", cwd=work)
    assert sorted(done.stdout.splitlines()) == ["[0] 11", "[1] 22"]
    (sweep,) = answer("list")
    assert sweep["name"] == "probe"
    assert answer("status", "probe/1")["name"] == "probe-2"


def test_a_job_that_runs_is_started_again_whole_or_one_replica_of_it(work: Path) -> None:
    argv = ["--detach", "--name", "job", "-n", "2", "--", "sleep", "600"]
    fray("run", *argv, cwd=work)

    def attempts() -> list[int]:
        info = answer("status", "job")
        return [task["attempt"] for task in info["tasks"] if task["status"] == "running"]

    until(lambda: attempts() == [1, 1], "both run")
    assert fray("restart", "job", "--replica", "1").stdout.split()[1] == "running"
    until(lambda: attempts() == [1, 2], "one of them has started again")
    fray("restart", "job", "--grace", "1s")
    until(lambda: attempts() == [2, 3], "both have started again")
    assert "replica" in fray("restart", "job", "--replica", "7", code=2).stderr
    fray("stop", "job")


def test_a_failed_job_runs_again_under_its_id(work: Path) -> None:
    (work / "bad").touch()
    argv = ["--name", "job", "-e", "FRAY_PARAM_SEED=1", "-e", "FRAY_SWEEP_INDEX=0"]
    argv += ["--on-exit", "echo $FRAY_JOB_STATUS >> ends", "train.py"]
    fray("run", *argv, cwd=work, code=3)
    assert "`fray retry" in fray("restart", "job", "--replica", "0", code=2).stderr
    (work / "bad").unlink()
    fray("retry", "job")
    fray("wait", "job")
    (task,) = answer("status", "job")["tasks"]
    assert (task["attempt"], task["status"], task["previous"][0]["exit_code"]) == (2, "succeeded", 3)
    assert "there is nothing to run again" in fray("restart", "job", code=2).stderr
    until(lambda: (work / "ends").read_text() == "failed\nsucceeded\n", "each end was reported")
