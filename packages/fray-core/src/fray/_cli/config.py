"""`fray config`: what files and variables set, and where."""

import os
from typing import Any

import click

from fray._cli.output import print_table
from fray._cli.settings import (
    CLUSTER_VARIABLE,
    CONTEXT_VARIABLE,
    Setting,
    configurable,
    run_defaults,
    settings,
    user_file,
)
from fray._cli.shared import json_option, print_json

_SECRET = ("run.env",)


@click.group()
def config() -> None:
    """Show what files and variables set."""


@config.command()
@click.option("--origin", is_flag=True, help="Print where each value is from.")
@json_option
def show(origin: bool, as_json: bool) -> None:
    """Show what is set: the command line wins, then variables, the project's file, the user's."""
    found = _effective()
    if as_json:
        rows = [{"key": key, "value": _shown(key, each.value), "origin": each.origin} for key, each in found]
        print_json({"settings": rows, "files": list(settings().files), "user_file": str(user_file())})
        return
    columns = ["key", "value", *(["origin"] if origin else [])]
    print_table(
        columns,
        [[key, _text(_shown(key, each.value)), *([each.origin] if origin else [])] for key, each in found],
    )


@config.command()
@json_option
def keys(as_json: bool) -> None:
    """List the keys that a file may have, and the variables that win over them."""
    from fray._cli.run import run

    rows = [
        ("cluster", CLUSTER_VARIABLE, "The spec or name of the cluster of every verb."),
        ("context", CONTEXT_VARIABLE, "The spec of the context that jobs find."),
        ("clusters.NAME", "", "The spec that `--cluster NAME` stands for."),
        *(
            (f"run.{name}", option.envvar or "", option.help or "")
            for name, option in configurable(run).items()
        ),
    ]
    if as_json:
        print_json([{"key": key, "variable": variable or None, "help": text} for key, variable, text in rows])
        return
    print_table(["key", "variable", "sets"], [[str(cell) for cell in row] for row in rows])


def _effective() -> list[tuple[str, Setting]]:
    from fray._cli.run import run

    files = settings()
    run_defaults(run)  # refuses what is wrong
    found = {"cluster": Setting("local", "default"), **files.values}
    named = {f"run.{name}": option.envvar for name, option in configurable(run).items()}
    for key, variable in {"cluster": CLUSTER_VARIABLE, "context": CONTEXT_VARIABLE, **named}.items():
        if isinstance(variable, str) and os.environ.get(variable):
            found[key] = Setting(os.environ[variable], f"variable {variable}")
    return sorted(found.items())


def _shown(key: str, value: Any) -> Any:
    """Return what may be shown: of variables for jobs the names, for values are secrets."""
    if key not in _SECRET:
        return value
    texts = value if isinstance(value, dict | list) else [value]
    return [str(text).partition("=")[0] for text in texts]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
