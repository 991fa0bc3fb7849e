"""What the command line does with the URL of a queue, whatever its kind."""

import json

import pytest

from fray.testing.command_line import main


def check_verbs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Make, use and remove a queue that is not there yet; before and after that every verb is an error."""

    def run(*arguments: str) -> str:
        assert main(["queue", *arguments]) == 0
        return capsys.readouterr().out

    for verb in (["stats"], ["peek"], ["pop"], ["push"], ["dead"], ["delete", "--yes"], ["work"]):
        extra = {"work": ["--", "true"], "push": ["x"]}.get(verb[0], [])
        assert main(["queue", *verb, url, *extra]) == 1, verb
        assert "no queue" in capsys.readouterr().err
    kept = [] if url.startswith("file:") else ["--max-attempts", "2"]  # a folder does not keep it
    run("create", url, *kept)
    assert json.loads(run("stats", url, "--json"))[0]["size"] == 0
    with pytest.raises(SystemExit):
        main(["queue", "peek", url])
    run("push", url, "x", "y")
    assert run("peek", url) == run("peek", url) == "x\n"
    run("delete", url, "--yes")
    assert main(["queue", "stats", url]) == 1
    capsys.readouterr()
