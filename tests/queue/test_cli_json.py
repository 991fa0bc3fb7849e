"""What `fray queue` prints with `--json` is what its schema in the docs says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import jsonschema
import pytest

from fray.queue import open_queue
from fray.testing.command_line import main
from fray_queue import HttpQueueServer
from fray_queue.testing import queue_command as root

if TYPE_CHECKING:
    from engine_servers import RedisServer

Capture = pytest.CaptureFixture[str]
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def commands(group: click.Group, path: str = "queue") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}-{name}")
        else:
            yield f"{path}-{name}", command


def check(name: str, shown: str) -> Any:
    schema = json.loads((SCHEMAS / f"queue-{name}.json").read_text())
    data = json.loads(shown)
    jsonschema.Draft202012Validator(schema).validate(data)
    return data


def test_every_verb_that_prints_json_has_a_schema() -> None:
    found = {
        f"{name}.json"
        for name, command in commands(root)
        if any("--json" in param.opts for param in command.params)
    }
    assert found == {path.name for path in SCHEMAS.glob("queue-*.json")}
    for path in SCHEMAS.glob("queue-*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_a_queue_on_disk_as_json(tmp_path: Path, capsys: Capture) -> None:
    url = f"sqlite:{tmp_path / 'q.db'}"

    def run(verb: str, *argv: str) -> str:
        assert main(["queue", verb, "--json", url, *argv]) == 0
        return capsys.readouterr().out

    assert len(check("push", run("push", "--create", '{"a": 1}', "2", "null"))) == 3
    assert check("peek", run("peek")) == {"a": 1}
    (stats,) = check("stats", run("stats"))
    assert (stats["size"], stats["pending"]) == (3, 3)
    popped = [check("pop", line) for line in run("pop", "-n", "2").splitlines()]
    assert [each["item"] for each in popped] == [{"a": 1}, 2]
    failing = open_queue(url, max_attempts=1)
    lease = failing.pop()
    assert lease is not None
    failing.release(lease)
    (letter,) = check("dead", run("dead"))
    assert letter["item"] == "None"
    assert check("requeue", run("requeue")) == {"requeued": 1}
    assert check("purge", run("purge", "--yes")) == {"removed": 1}


def test_a_folder_that_is_whole_as_json(tmp_path: Path, capsys: Capture) -> None:
    url = f"file:{tmp_path / 'folder'}"
    assert main(["queue", "push", "--create", url, "item"]) == 0
    capsys.readouterr()
    assert main(["queue", "repair", "--json", url]) == 0
    assert check("repair", capsys.readouterr().out) == []
    for path in (tmp_path / "folder").rglob("*"):
        if path.is_file() and "item" in path.read_bytes().decode(errors="replace"):
            path.write_bytes(b"damaged")
    with pytest.raises(SystemExit):
        main(["queue", "repair", "--json", url])
    assert check("repair", capsys.readouterr().out)


def test_a_server_in_front_of_an_engine_as_json(redis_server: "RedisServer", capsys: Capture) -> None:
    with HttpQueueServer(token="of-the-tests", engine=redis_server.url) as server:
        open_queue(f"{server.url}/listed-as-json", token="of-the-tests", create=True).push("item")
        assert main(["queue", "list", "--json", server.url]) == 0
        rows = {row["name"]: row for row in check("list", capsys.readouterr().out)}
        assert rows["listed-as-json"]["pending"] == 1
        assert main(["queue", "list", server.url]) == 0
        shown = capsys.readouterr().out
        assert "listed-as-json" in shown
        assert "None" not in shown


def test_a_server_as_json(capsys: Capture) -> None:
    with HttpQueueServer(token="of-the-tests") as server:
        server.new_queue("tasks", max_attempts=1).push("item")
        assert main(["queue", "list", "--json", server.url]) == 0
        (row,) = check("list", capsys.readouterr().out)
        assert (row["name"], row["pending"]) == ("tasks", 1)
        url = f"{server.url}/tasks"
        assert main(["queue", "stats", "--json", url]) == 0
        check("stats", capsys.readouterr().out)
        opened = open_queue(url, token="of-the-tests")
        lease = opened.pop()
        assert lease is not None
        opened.release(lease)
        assert main(["queue", "dead", "--json", url]) == 0
        (letter,) = check("dead", capsys.readouterr().out)
        assert letter["bytes"] > 0
