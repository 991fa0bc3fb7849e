"""What every verb prints with `--json` is what its schema in the docs says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from command_line import fray

from fray.job import ProcessContext
from fray.testing.command_line import fray as root

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
# Verb -> its schema. Those of queues are described there; a page and a script for a shell are no data.
VERBS = {
    "run": "job",
    "list": "jobs",
    "status": "status",
    "logs": "lines",
    "usage": "usage",
    "wait": "jobs",
    "stop": "jobs",
    "retry": "jobs",
    "restart": "jobs",
    "rm": "ids",
    "prune": "prune",
    "config show": "config-show",
    "config keys": "config-keys",
    "doctor": "doctor",
    "plugins": "plugins",
    "actors list": "actors",
    "actors kill": "actors",
}
NO_DATA = {"completion", "ui"}


def check(name: str, shown: str) -> Any:
    """Validate what a verb printed; every object of a schema is closed, so nothing is left undescribed."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    data = json.loads(shown)
    jsonschema.Draft202012Validator(schema).validate(data)
    return data


def verbs(group: click.Group, path: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        verb = f"{path}{name}"
        if isinstance(command, click.Group):
            yield from verbs(command, f"{verb} ")
        else:
            yield verb


def test_every_verb_has_a_schema() -> None:
    found = {verb for verb in verbs(root) if not verb.startswith("queue ")}
    assert found == set(VERBS) | NO_DATA
    used = {f"{name}.json" for name in [*VERBS.values(), "request"]}
    assert {path.name for path in SCHEMAS.iterdir() if not path.name.startswith("queue-")} == used
    for path in SCHEMAS.iterdir():
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "local?overcommit=true")
    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text("[tool.fray.run]\nlabel = {team = 'nlp'}\nenv = {A = '1'}\n")
    return work


def test_a_jobs_life_as_json(work: Path) -> None:
    failed = check(
        "job",
        fray("run", "--json", "--name", "bad", "--retries", "1", "--", "false", cwd=work, code=1).stdout,
    )
    assert (failed["status"], failed["exit_code"], failed["labels"]) == ("failed", 1, {"team": "nlp"})
    parent = "import fray; fray.current_cluster().launch(fray.JobRequest('child', fray.Entrypoint('true')))"
    parent = parent.replace("fray.Entrypoint('true')", "fray.Entrypoint(binary='true')")
    argv = ["--detach", "--name", "parent", "--gpu", "1", "--", "python", "-c", parent]
    job = check("job", fray("run", "--json", *argv, cwd=work).stdout)["job_id"]
    check("jobs", fray("wait", "--json", job).stdout)
    sleeper = fray("run", "--detach", "--name", "sleeper", "--", "sleep", "600", cwd=work).stdout.strip()
    (stopped,) = check("jobs", fray("stop", "--json", sleeper).stdout)
    assert stopped["exit_code"] == 143
    assert len(check("jobs", fray("list", "--json").stdout)) == 4
    for each in (failed["job_id"], job, sleeper):
        check("status", fray("status", "--json", each).stdout)
    assert check("lines", fray("logs", "--json", job).stdout) == []
    assert check("ids", fray("rm", "--json", sleeper).stdout) == [sleeper]
    would = check("prune", fray("prune", "--json", "--dry-run", "--older-than", "0s").stdout)
    assert would["jobs"]
    assert sum(would["sizes"].values()) == would["size"] > 0
    assert check("prune", fray("prune", "--json", "--older-than", "0s").stdout)["jobs"] == would["jobs"]
    assert check("jobs", fray("list", "--json").stdout) == []


def test_a_sweep_as_json(work: Path) -> None:
    argv = ["--name", "sweep", "--sweep", "seed=0..1", "--", "sh", "-c", "exit $FRAY_PARAM_SEED"]
    check("request", fray("run", "--json", "--dry-run", *argv, cwd=work).stdout)
    sweep = check("job", fray("run", "--json", *argv, cwd=work, code=1).stdout)
    assert sweep["progress"]["failed"] == 1
    check("jobs", fray("list", "--json").stdout)
    assert len(check("status", fray("status", "--json", "sweep").stdout)["members"]) == 2
    check("status", fray("status", "--json", "sweep/1").stdout)
    check("jobs", fray("retry", "--json", "sweep").stdout)
    check("jobs", fray("wait", "--json", "sweep", code=1).stdout)
    check("jobs", fray("restart", "--json", "sweep").stdout)
    check("jobs", fray("wait", "--json", "sweep", code=1).stdout)


def test_a_request_as_json(work: Path) -> None:
    argv = ["--tpu", "v5litepod-16", "--region", "eu", "--after", "x", "--", "true"]
    check("request", fray("run", "--json", "--dry-run", *argv, cwd=work).stdout)
    chips = check("request", fray("run", "--json", "--dry-run", "--tpu", "v5litepod-8:4", "true").stdout)
    assert chips["resources"]["device"]["count"] == 4
    check("request", fray("run", "--json", "--dry-run", "-n", "4,2", "--gpu", "1", "--", "true").stdout)


def test_the_installation_as_json(work: Path) -> None:
    check("config-show", fray("config", "show", "--json", cwd=work).stdout)
    check("config-keys", fray("config", "keys", "--json", cwd=work).stdout)
    check("doctor", fray("doctor", "--json", cwd=work).stdout)
    check("doctor", fray("doctor", "--json", "--cluster", "nosuch", cwd=work, code=1).stdout)
    check("plugins", fray("plugins", "--json", cwd=work).stdout)


class Counter:
    """An actor."""


def test_actors_as_json(work: Path) -> None:
    with ProcessContext(max_workers=1) as context:
        actor = context.create_actor(Counter, name="counter", lifetime="detached")
        assert actor is not None
    (row,) = check("actors", fray("actors", "list", "--json").stdout)
    assert row["name"] == "counter"
    check("actors", fray("actors", "kill", "counter", "--json").stdout)
