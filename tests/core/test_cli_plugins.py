"""The `fray` command and `fray plugins`."""

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fray.testing.command_line import main
from fray.testing.installation import uninstall_all

if TYPE_CHECKING:
    from tests.core.conftest import Install
else:
    Install = object

COMMAND = """
import click
@click.command()
def hello():
    "Say hello."
    click.echo("hello")
    return 7
"""


def test_plugins_lists_what_is_installed_and_why_one_is_broken(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("fray-broken", {"fray.queues": {"odd": "odd_backend:Odd"}}, odd_backend="import not_there")
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "fray-broken" in line]
    assert line.split()[:4] == ["fray.queues", "odd", "fray-broken", "1.0"]
    assert "not_there" in line


def test_plugins_as_json_says_the_same(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fray-mine", {"fray.queues": {"fine": "builtins:dict"}})
    assert main(["plugins", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    (row,) = [row for row in rows if row["distribution"] == "fray-mine"]
    assert row == {
        "group": "fray.queues",
        "name": "fine",
        "distribution": "fray-mine",
        "version": "1.0",
        "value": "builtins:dict",
        "status": "ok",
    }


@pytest.mark.parametrize("argv", [["plugins", "--nope"], ["no-such-verb"], ["plugins", "extra"]])
def test_what_is_not_understood_is_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert argv[-1] in captured.err


def test_a_verb_of_a_plugin_is_a_verb(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fray-hello", {"fray.commands": {"hello": "hello_command:hello"}}, hello_command=COMMAND)
    assert main(["hello"]) == 7
    assert capsys.readouterr().out == "hello\n"
    assert main(["--help"]) == 0
    assert "Say hello." in capsys.readouterr().out


def test_a_verb_of_a_wheel_that_is_missing_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uninstall_all(monkeypatch)
    assert main(["queue", "pop", "sqlite:q.db"]) == 1
    assert "'queue' comes with fray-queue: pip install fray-queue" in capsys.readouterr().err


def test_a_broken_verb_hides_no_other_and_says_why(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("fray-bad", {"fray.commands": {"bad": "bad_command:bad"}}, bad_command="import not_there")
    assert main(["--help"]) == 0
    assert "plugins" in capsys.readouterr().out
    assert main(["bad"]) == 1
    assert "not_there" in capsys.readouterr().err


def test_the_console_script_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fray", "plugins", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)


SLOW = """
import threading
class Slow:
    def list_jobs(self):
        threading.Event().wait(60)
"""


def test_doctor_gives_up_a_cluster_that_does_not_answer(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("fray-slow", {"fray.clusters": {"slow": "slow_backend:Slow"}}, slow_backend=SLOW)
    assert main(["doctor", "--cluster", "slow", "--timeout", "0.2s", "--json"]) == 1
    (row,) = [row for row in json.loads(capsys.readouterr().out)["findings"] if row["cluster"] == "slow"]
    assert (row["health"], row["found"]) == ("error", "no answer within 0.2 s")
    assert row["advice"]


def test_doctor_tells_of_a_plugin_that_is_broken(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("fray-broken", {"fray.queues": {"odd": "odd_backend:Odd"}}, odd_backend="import not_there")
    install("fray-empty", {"fray.clusters": {"empty": "empty_backend:Empty"}}, empty_backend=EMPTY)
    assert main(["doctor", "--cluster", "empty"]) == 1
    out = capsys.readouterr().out
    assert "not_there" in out
    assert "uninstall its distribution" in out


EMPTY = """
class Empty:
    def list_jobs(self):
        return []
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_FRAY_COMPLETE" in capsys.readouterr().out
