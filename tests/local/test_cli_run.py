"""What `fray run` can be given, and what is refused before anything starts."""

import dataclasses
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import answer, fray

from fray import JobRequest
from fray.testing.cluster import until

PROGRAM = """
import os, sys

def main(lr: float = 0.1, name: str = "x", *, flags=None):
    print("function", repr(lr), repr(name), flags, os.path.basename(os.getcwd()))

class Trainer:
    @staticmethod
    def fit(): print("method")

VALUE = 3

if __name__ == "__main__":
    print("program", sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a script, a package, and a cluster that starts every job at once."""
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?overcommit=true")
    work = tmp_path / "work"
    (work / "pkg").mkdir(parents=True)
    (work / "pkg" / "__init__.py").touch()
    (work / "pkg" / "train.py").write_text(PROGRAM)
    (work / "train.py").write_text(PROGRAM)
    return work


@pytest.mark.parametrize(
    ("argv", "out", "name"),
    [
        (["train.py", "--lr", "0.1", "--json"], "program ['--lr', '0.1', '--json']", "train"),
        (["-m", "pkg.train", "--lr", "0.1", "-m"], "program ['--lr', '0.1', '-m']", "pkg.train"),
        (["pkg.train:main"], "function 0.1 'x' None work", "pkg.train:main"),
        (["train:main", "--arg", "lr=3", "--arg=name=3 x"], "function 3 '3 x' None work", "train:main"),
        (["--arg", 'flags={"a": [1]}', "train:main"], "function 0.1 'x' {'a': [1]} work", "train:main"),
        (["train:Trainer.fit"], "method", "train:Trainer.fit"),
        (["--", "python", "train.py", "--", "-x"], "program ['--', '-x']", "python-train.py"),
        (["--name", "mine", "train.py"], "program []", "mine"),
    ],
)
def test_a_script_a_module_a_function_or_a_command(work: Path, argv: list[str], out: str, name: str) -> None:
    done = fray("run", *argv, cwd=work)
    assert done.stdout == f"{out}\n"
    (job,) = answer("list")
    assert job["name"] == name


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["tain.py"], "there is no file tain.py in"),
        (["--workdir", "pkg", "pkg/train.py"], "which --workdir leaves"),
        (["-m", "pkg.trian"], "no module 'pkg.trian'"),
        (["-m", "train.py"], "no module 'train.py'"),
        (["-m", "a b"], "dotted name"),
        (["train:mian"], "'train' has no function 'mian'; it has main"),
        (["nowhere:main"], "No module named 'nowhere'"),
        (["train:VALUE"], "is not a function: its type is int"),
        (["train:VALUE.fit"], "'train' has no function 'VALUE.fit'"),
        (["train:main", "--arg", "lrr=3"], "unexpected keyword argument 'lrr'"),
        (["train:main", "--lr", "3"], "it takes --arg NAME=VALUE, got '--lr'"),
        (["train:main", "--arg", "lr=1", "--arg", "lr=2"], "--arg lr is given twice"),
        (["train:main", "--arg", "3=1"], "--arg takes NAME=VALUE"),
        (["--arg", "lr=1", "train.py"], "--arg goes with a function"),
        (["--timeout", "soon", "train.py"], "1h30m"),
        (["--gpu", "H100:x", "train.py"], "H100:8"),
        (["--tpu", "v5litepod-8:x", "train.py"], "v5litepod-8:4"),
        (["--tpu", "v5litepod-8:3", "train.py"], "count"),
        (["-n", "some", "train.py"], "got 'some'"),
        (["--topology", "2x2", "train.py"], "--tpu"),
        (["--backend", "partition=gpu", "train.py"], "slurm.partition=gpu"),
        (["--on-exit", " ", "train.py"], "on_exit"),
        (["--port", "a b", "train.py"], "ports"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(work: Path, argv: list[str], told: str) -> None:
    assert told in fray("run", *argv, cwd=work, code=2).stderr
    assert answer("list") == []


def test_a_module_that_only_the_job_finds_is_run(work: Path) -> None:
    (work / "src").mkdir()
    (work / "src" / "apart.py").write_text("print('found')\n")
    assert fray("run", "-e", f"PYTHONPATH={work / 'src'}", "-m", "apart", cwd=work).stdout == "found\n"


def test_a_module_that_a_finder_of_this_python_knows_is_run(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of editable installs do."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "apart.py").write_text("print('found')\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return PathFinder.find_spec(name, [{str(tmp_path / 'elsewhere')!r}])\n"
        "sys.meta_path.append(Finder)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert fray("run", "-m", "apart", cwd=work).stdout == "found\n"


def test_what_a_module_does_as_it_is_imported_is_neither_the_run_nor_its_output(work: Path) -> None:
    (work / "unguarded.py").write_text("import sys\ndef main(): return 0\nsys.exit(main())\n")
    assert (
        "'unguarded' ends the program that imports it"
        in fray("run", "unguarded:main", cwd=work, code=2).stderr
    )
    assert answer("list") == []
    (work / "talks.py").write_text("print('loading')\ndef main(): pass\n")
    done = fray("run", "--detach", "talks:main", cwd=work)
    (job,) = answer("list")
    assert (done.stdout, done.stderr) == (f"{job['job_id']}\n", "loading\n")
    assert fray("wait", job["job_id"]).returncode == 0


def test_what_stands_behind_two_dashes_is_run_as_it_is(work: Path) -> None:
    done = fray("run", "--", "train.py", cwd=work, code=127)
    assert "could not start 'train.py'" in done.stderr


def test_every_field_of_a_request_has_a_flag(work: Path) -> None:
    flags: dict[str, list[str]] = {
        "name": ["--name", "mine"],
        "entrypoint": [],
        "entrypoint_args": [],
        "resources": [
            *("-n", "4,2", "--cpu", "2", "--ram", "2g", "--disk", "1g", "--gpu", "H100:8"),
            *("--no-preemptible", "--region", "eu"),
        ],
        "environment": [
            *("--workdir", ".", "--image", "a:b", "--pip", "numpy", "-e", "A=1", "--extra", "x"),
            *("--group", "dev", "--python", "3.12"),
        ],
        "max_retries_failure": ["--retries", "3"],
        "max_retries_preemption": ["--retries-preemption", "7"],
        "timeout": ["--timeout", "1h30m"],
        "gang": ["--no-gang"],
        "after": ["--after", "x"],
        "labels": ["--label", "team=nlp"],
        "ports": ["--port", "http"],
        "snapshot": ["--snapshot"],
        "log_limit": ["--log-limit", "64m"],
        "backend": ["--backend", "slurm.partition=gpu"],
        "on_exit": ["--on-exit", "date"],
    }
    assert {field.name for field in dataclasses.fields(JobRequest)} == set(flags)
    argv = [flag for given in flags.values() for flag in given]
    shown = answer("run", "--dry-run", *argv, "train.py", cwd=work)
    default = answer("run", "--dry-run", "train.py", cwd=work)
    same = {key for key in default if shown[key] == default[key]}
    assert same == {"entrypoint"}
    resources = shown["resources"]
    assert (resources["replicas"], resources["regions"], resources["preemptible"]) == ([4, 2], ["eu"], False)
    assert (shown["timeout"], shown["gang"], shown["backend"]) == (5400, False, ["slurm"])
    options = set(re.findall(r"--[a-z-]+", fray("run", "--help").stdout))
    assert {flag for flag in argv if flag.startswith("--")} <= options | {"--no-preemptible", "--no-gang"}


@pytest.mark.parametrize(
    ("given", "device"),
    [
        ("1", {"kind": "gpu", "type": "any", "count": 1}),
        ("H100", {"kind": "gpu", "type": "H100", "count": 1}),
        ("A100:4", {"kind": "gpu", "type": "A100", "count": 4}),
    ],
)
def test_gpus_by_number_by_type_or_by_both(work: Path, given: str, device: dict[str, Any]) -> None:
    shown = answer("run", "--dry-run", "--gpu", given, "train.py", cwd=work)
    found = shown["resources"]["device"]
    assert (found["kind"], found["count"]) == (device["kind"], device["count"])
    assert found["type"].startswith(device["type"])


def test_a_timeout_is_written_as_people_do(work: Path) -> None:
    done = fray("run", "--timeout", "0.5s", "--", "sleep", "60", cwd=work, code=124)
    assert "timeout of 0.5 s" in done.stderr


def test_the_context_of_a_job_is_named_on_the_command_line(work: Path) -> None:
    done = fray("run", "--context", "sync", "--", "sh", "-c", "echo $FRAY_CONTEXT_SPEC", cwd=work)
    assert done.stdout == "sync\n"


SAY = (
    "echo $FRAY_JOB_ID $FRAY_JOB_STATUS $FRAY_JOB_REASON $FRAY_JOB_EXIT_CODE >> said;"
    " fray status $FRAY_JOB_ID --json > seen || true"
)


@pytest.mark.parametrize(
    ("command", "ending", "code"),
    [
        ("true", "succeeded exited 0", 0),
        ("exit 3", "failed exited 3", 3),
        ("kill -9 $$", "failed signalled 137", 137),
    ],
)
def test_a_command_runs_once_when_the_job_has_ended(work: Path, command: str, ending: str, code: int) -> None:
    argv = ["--name", "job", "--retries", "1", "--on-exit", SAY, "--", "sh", "-c", command]
    fray("run", *argv, cwd=work, code=code)
    (job,) = answer("list")
    until(lambda: (work / "seen").exists() and not is_alive(job["job_id"]), "the command has run")
    assert (work / "said").read_text() == f"{job['job_id']} {ending}\n"
    fray("status", job["job_id"], code=0)
    assert (work / "said").read_text().count("\n") == 1


def test_a_command_runs_though_the_supervisor_was_killed(work: Path, state_dir: Path) -> None:
    job_id = fray(
        "run", "--detach", "--name", "job", "--on-exit", SAY, "--", "sleep", "600", cwd=work
    ).stdout.strip()
    record = state_dir / "jobs" / job_id
    until(lambda: answer("status", job_id)["status"] == "running", "it runs")
    os.kill(holder(record)["pid"], signal.SIGKILL)
    until(lambda: was_said(work), "the guardian has run the command")
    assert (work / "said").read_text() == f"{job_id} failed lost 1\n"


def test_a_command_runs_though_the_guardian_was_killed(work: Path, state_dir: Path) -> None:
    argv = [
        "--detach",
        "--name",
        "job",
        "--on-exit",
        SAY,
        "--",
        "sh",
        "-c",
        "until test -e go; do sleep 0.05; done",
    ]
    job_id = fray("run", *argv, cwd=work).stdout.strip()
    until(lambda: answer("status", job_id)["status"] == "running", "it runs")
    os.kill(holder(state_dir / "jobs" / job_id)["guardian"], signal.SIGKILL)
    (work / "go").touch()
    until(lambda: was_said(work), "the supervisor has run the command")
    assert (work / "said").read_text() == f"{job_id} succeeded exited 0\n"


def test_a_command_runs_when_a_pending_job_is_stopped(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?cpus=1")
    first = fray("run", "--detach", "--", "sleep", "600", cwd=work).stdout.strip()
    second = fray("run", "--detach", "--on-exit", SAY, "--", "sleep", "600", cwd=work).stdout.strip()
    assert answer("status", second)["status"] == "pending"
    fray("stop", second)
    until(lambda: was_said(work), "the command has run")
    assert (work / "said").read_text() == f"{second} stopped stopped 143\n"
    fray("stop", first)


def test_what_the_command_writes_is_beside_the_logs(work: Path) -> None:
    fray("run", "--name", "job", "--on-exit", "echo bye", "--", "true", cwd=work)
    (job,) = answer("list")

    def logs() -> list[str]:
        return [log for log in answer("status", job["job_id"])["logs"] if log.endswith("on-exit.log")]

    until(lambda: bool(logs()) and Path(logs()[0]).read_text() == "bye\n", "it has written")


def was_said(work: Path) -> bool:
    said = work / "said"
    return said.exists() and said.read_text().endswith("\n")


def holder(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((record / "lock").read_text())
    return found


def is_alive(job_id: str) -> bool:
    return answer("status", job_id)["status"] in ("pending", "running")
