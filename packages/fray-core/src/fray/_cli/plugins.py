"""`fray plugins`: what is installed, from which distribution, and what is wrong with it."""

import json
from typing import Any

import click

from fray._cli.output import print_table
from fray._discovery.plugins import KINDS, find
from fray._discovery.plugins import plugins as installed
from fray._values.capabilities import Capabilities
from fray._values.errors import PluginError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(as_json: bool) -> None:
    """List the installed plugins, broken ones with the reason."""
    rows = [row for group in KINDS for row in _rows(group)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    columns = ["group", "name", "distribution", "version", "status"]
    print_table(columns, [[row[column] for column in columns] for row in rows])


def _rows(group: str) -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "name": name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "value": plugin.entry_point.value,
            **_loaded(group, name),
        }
        for name, claimants in installed(group).items()
        for plugin in claimants
    ]


def _loaded(group: str, name: str) -> dict[str, Any]:
    """Return whether a plugin can be loaded, and what its class declares."""
    try:
        backend = find(group, name).load()
    except PluginError as error:
        return {"status": str(error)}
    declared = Capabilities.of(backend)
    return {"status": "ok"} | ({} if declared is None else {"capabilities": dict(declared.to_dict())})
