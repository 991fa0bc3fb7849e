"""Settings of a user and a project: what wins, where it is from, and what is no setting."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from command_line import answer, fray

from fray.testing.command_line import COMMAND, main

USER = """
cluster = "local?overcommit=true"
[clusters]
big = "local?overcommit=true&keep_jobs=7"
[run]
ram = "2g"
cpu = 2
label = {team = "nlp", who = "ada"}
"""
PROJECT = """
[project]
name = "theirs"
[tool.fray]
context = "sync"
[tool.fray.run]
cpu = 4
timeout = "1h"
snapshot = true
env = {SECRET = "s3cret-s3cret"}
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    user = tmp_path / "config" / "fray" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text(USER)
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path / "config"))
    work = tmp_path / "work"
    (work / "below").mkdir(parents=True)
    (work / "pyproject.toml").write_text(PROJECT)
    (work / "below" / "train.py").write_text("import os; print(os.environ['FRAY_CONTEXT_SPEC'])\n")
    return work


def test_the_project_wins_over_the_user_a_variable_over_both_and_the_line_over_all(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*argv: str) -> tuple[float, str, float, bool]:
        shown = answer("run", "--dry-run", *argv, "train.py", cwd=work / "below")
        resources = shown["resources"]
        return resources["cpu"], resources["ram"], shown["timeout"], shown["snapshot"]

    assert asked() == (4, "2g", 3600, True)
    monkeypatch.setenv("FRAY_RUN_CPU", "8")
    assert asked() == (8, "2g", 3600, True)
    assert asked("--cpu", "1", "--timeout", "10s") == (1, "2g", 10, True)


def test_labels_and_variables_of_files_and_the_line_are_taken_together(work: Path) -> None:
    argv = ["--label", "who=bob", "--label", "x=1", "-e", "A=1", "train.py"]
    shown = answer("run", "--dry-run", *argv, cwd=work / "below")
    assert shown["labels"] == {"team": "nlp", "who": "bob", "x": "1"}
    assert shown["environment"]["env_vars"] == ["A", "FRAY_CONTEXT_SPEC", "SECRET"]


@pytest.mark.parametrize(
    ("file", "argv", "printed"),
    [
        ('env = {A = "project"}', ["--env-file", "line"], "line sync"),
        ('env = {A = "project"}', ["--env-file", "line", "-e", "A=e"], "e sync"),
        ('env = {A = "project"}', ["--env-file", "context"], "project threadpool"),
        ('env = {A = "project"}\nenv-file = "line"', [], "project sync"),
        ('env = {A = "project"}\nenv-file = "line"', ["--env-file", "context"], "project threadpool"),
        ('env-file = "line"', ["--env-file", "context"], "line threadpool"),
    ],
)
def test_an_env_file_of_the_line_wins_over_the_project(
    work: Path, file: str, argv: list[str], printed: str
) -> None:
    (work / "pyproject.toml").write_text(f"[tool.fray]\ncontext = 'sync'\n[tool.fray.run]\n{file}\n")
    (work / "line").write_text("A=line\n")
    (work / "context").write_text("FRAY_CONTEXT_SPEC=threadpool\n")
    job = ["sh", "-c", "echo $A $FRAY_CONTEXT_SPEC"]
    assert fray("run", "--cpu", "1", *argv, "--", *job, cwd=work).stdout == f"{printed}\n"


def test_a_path_of_a_project_starts_at_its_folder(work: Path) -> None:
    (work / "pyproject.toml").write_text("[tool.fray.run]\nenv-file = 'team.env'\nworkdir = 'below'\n")
    (work / "team.env").write_text("TEAM=nlp\n")
    (work / "below" / "deeper").mkdir()
    job = ["sh", "-c", "echo $TEAM $(basename $PWD)"]
    assert fray("run", "--cpu", "1", "--", *job, cwd=work / "below" / "deeper").stdout == "nlp below\n"


def test_a_variable_wins_over_the_context_of_a_file_in_the_request_too(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAY_CONTEXT_SPEC", "threadpool?max_workers=3")
    shown = answer("run", "--dry-run", "train.py", cwd=work / "below")
    assert "FRAY_CONTEXT_SPEC" in shown["environment"]["env_vars"]  # clusters need not inherit a launcher's


def test_where_each_value_is_from(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_RUN_RAM", "3g")
    shown = answer_config(work)
    user, project = os.fspath(tmp_path / "config/fray/config.toml"), os.fspath(work / "pyproject.toml")
    assert shown["cluster"] == ("local?overcommit=true", user)
    assert shown["clusters.big"][1] == user
    assert shown["run.cpu"] == (4, project)
    assert shown["run.ram"] == ("3g", "variable FRAY_RUN_RAM")
    assert shown["context"] == ("sync", project)
    text = fray("config", "show", "--origin", cwd=work).stdout
    (row,) = [line for line in text.splitlines() if line.startswith("run.cpu ")]
    assert row.split() == ["run.cpu", "4", project]
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?cpus=1")
    assert answer_config(work)["cluster"] == ("local?cpus=1", "variable FRAY_CLUSTER_SPEC")


def answer_config(folder: Path) -> dict[str, tuple[object, str]]:
    import json

    shown = json.loads(fray("config", "show", "--json", cwd=folder).stdout)
    return {row["key"]: (row["value"], row["origin"]) for row in shown["settings"]}


def test_values_of_variables_are_never_shown(work: Path) -> None:
    for argv in (["show"], ["show", "--origin"], ["show", "--json"]):
        out = fray("config", *argv, cwd=work).stdout
        assert "SECRET" in out
        assert "s3cret" not in out


def test_the_cluster_and_context_of_a_file_are_used(work: Path) -> None:
    # More CPUs than any machine has: only a cluster that does not count them takes it.
    assert fray("run", "--cpu", "9999", "train.py", cwd=work / "below").stdout == "sync\n"
    assert fray("run", "--context", "process", "train.py", cwd=work / "below").stdout == "process\n"
    assert fray("list", "--cluster", "big", cwd=work).stdout.count("train-") == 2
    assert "Unknown cluster type 'small'" in fray("list", "--cluster", "small", cwd=work, code=1).stderr


def test_the_variable_of_the_cluster_takes_a_name_of_a_file_too(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "big")
    assert fray("list", cwd=work).stdout.startswith("id ")
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "small")
    assert "Unknown cluster type 'small'" in fray("list", cwd=work, code=1).stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tool.fray]\nclutser = 'local'", "unknown key 'clutser'; known: cluster, context, clusters, run"),
        ("[tool.fray]\ncluster = 3", "'cluster' must be a spec"),
        ("[tool.fray]\nrun = 3", "'run' must be a table"),
        (
            "[tool.fray.run]\ncpus = 3",
            "'run.cpus' is not an option of fray run that a file can set; did you mean",
        ),
        ("[tool.fray.run]\nkey = 'x'", "'run.key' is not an option of fray run that a file can set"),
        ("[tool.fray.run]\ncpu = 'many'", "'run.cpu': 'many' is not a valid float"),
        ("[tool.fray.run]\nretries = 2.9", "'run.retries': '2.9' is not a valid integer"),
        ("[tool.fray.run]\nretries = true", "'run.retries': 'True' is not a valid integer"),
        ("[tool.fray.run]\nretries = inf", "'run.retries': 'inf' is not a valid integer"),
        ("[tool.fray.run]\ncpu = [1, 2]", "'run.cpu': expected one value"),
        ("[tool.fray.run]\nsnapshot = 'yes'", "'run.snapshot': expected true or false"),
        ("[tool.fray.run]\ntimeout = 'soon'", "'run.timeout': expected a duration"),
        ("[tool.fray", "pyproject.toml cannot be read"),
    ],
)
def test_what_is_no_setting_is_one_clear_line(work: Path, text: str, told: str) -> None:
    (work / "pyproject.toml").write_text(text)
    err = fray("run", "--dry-run", "true", cwd=work, code=2).stderr
    assert told in err
    assert "pyproject.toml" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_for_the_jobs_own_command_leaves_the_settings_as_they_are(work: Path, option: str) -> None:
    assert answer("run", "--dry-run", "train.py", option, cwd=work / "below")["resources"]["cpu"] == 4
    (work / "pyproject.toml").write_text("[tool.fray.run]\ncpus = 3")
    assert "'run.cpus' is not an option" in fray("run", "train.py", option, cwd=work, code=2).stderr
    assert fray("run", option, "train.py", cwd=work).stdout.startswith("Usage: fray run ")


def test_a_project_that_says_nothing_of_fray_is_passed_over(work: Path) -> None:
    (work / "below" / "pyproject.toml").write_text("[project]\nname = 'uses-fray'\n")
    assert answer("run", "--dry-run", "true", cwd=work / "below")["resources"]["cpu"] == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_file_of_another_user_above_this_folder_sets_nothing(work: Path) -> None:
    for name, text in (("below", "[tool.fray.run]\ncpu = 7"), ("below/between", "[project]\nname = 'x'")):
        (work / name / "here").mkdir(parents=True)
        theirs = work / name / "pyproject.toml"
        theirs.write_text(text)
        os.chown(theirs, 65534, -1)
    folder = work / "below" / "between" / "here"
    assert answer("run", "--dry-run", "true", cwd=folder)["resources"]["cpu"] == 4
    (message,) = fray("run", "--dry-run", "true", cwd=folder).stderr.splitlines()
    assert f"{work}/below/pyproject.toml is passed over: it belongs to another user (uid 65534)" in message


def test_a_file_that_cannot_be_read_is_one_clear_line(work: Path) -> None:
    (work / "pyproject.toml").unlink()
    (work / "pyproject.toml").symlink_to("/proc/self/mem")  # reading its start is an error to root, too
    err = fray("list", cwd=work / "below", code=2).stderr
    assert "pyproject.toml cannot be read: " in err
    assert "Traceback" not in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_file_of_another_user_that_cannot_be_read_is_passed_over(work: Path) -> None:
    theirs = work / "below" / "pyproject.toml"
    theirs.touch(mode=0)
    os.chown(theirs, 65534, -1)
    as_any_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    command = [*as_any_user, *COMMAND, "run", "--dry-run", "true"]
    done = subprocess.run(command, cwd=theirs.parent, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_in_a_folder_that_was_removed_the_files_of_the_user_count(work: Path) -> None:
    folder = work / "removed"
    folder.mkdir()

    def run(*args: str) -> "subprocess.CompletedProcess[str]":
        folder.mkdir(exist_ok=True)
        command = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *COMMAND, *args]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)

    assert (run("list").returncode, run("list").stderr) == (0, "")
    refused = run("run", "--dry-run", "true")
    assert (refused.returncode, refused.stderr) == (
        1,
        "Error: the current directory is not there any more; change to another\n",
    )


def test_a_user_without_a_home_needs_a_place_for_records_only(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container that runs as a number."""

    def unknown(_uid: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.chdir(work)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert (main(["list"]), capsys.readouterr().err) == (0, "")
    monkeypatch.delenv("FRAY_STATE_DIR")
    assert main(["list", "--cluster", "local"]) == 1
    assert "fray: this user has no home directory: set FRAY_STATE_DIR" in capsys.readouterr().err


def test_every_key_is_listed_with_its_variable(work: Path) -> None:
    rows = {row.split()[0]: row.split() for row in fray("config", "keys", cwd=work).stdout.splitlines()}
    assert rows["run.cpu"][1] == "FRAY_RUN_CPU"
    assert rows["cluster"][1] == "FRAY_CLUSTER_SPEC"
    assert "run.on-exit" in rows
