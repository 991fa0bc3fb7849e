"""`fray actors`: the named actors of this machine that jobs share, and how to end one."""

import json
import time
from typing import Any

import click

from fray import ActorNotFoundError
from fray._cli.output import print_table
from fray_local._process.owner.actor_directory import Card, Directory, namespaces
from fray_local._process.owner.shared_actors import kill as kill_at


@click.group()
def actors() -> None:
    """List the shared actors of this machine, and end them."""


@actors.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def list_actors(as_json: bool) -> None:
    """List the living actors that other processes can find."""
    cards = [card for namespace in namespaces() for card in Directory(namespace).living()]
    if as_json:
        click.echo(json.dumps([_row(card) for card in cards], indent=2))
        return
    columns = ["name", "actor", "namespace", "lifetime", "age", "job"]
    print_table(columns, [[_row(card)[column] for column in columns] for card in cards])


@actors.command("kill")
@click.argument("name")
@click.option("--namespace", help="Where it is, should several namespaces have the name.")
def kill(name: str, namespace: str | None) -> None:
    """End an actor: its callers get ActorDiedError, its name is free."""
    found = [
        (directory, card)
        for directory in map(Directory, [namespace] if namespace else namespaces())
        for card in directory.living()
        if card.name == name
    ]
    if len(found) > 1:
        where = ", ".join(card.namespace for _, card in found)
        raise click.UsageError(f"{name!r} is in several namespaces: {where}; say which with --namespace")
    if not found:
        known = [card.name for one in namespaces() for card in Directory(one).living()]
        raise ActorNotFoundError(name, known)
    directory, card = found[0]
    connection = directory.find(name)
    directory.remove(card)
    if connection is not None and not kill_at(connection[1]):
        raise click.ClickException(
            f"{card.label} was told to end and its name is free, but its process does not answer: it may be "
            "stopped, and ends when it goes on; `ps` shows it as fray_local._process.host"
        )
    click.echo(f"killed {card.label}")


def _row(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "actor": card.label.partition("(")[0],
        "namespace": card.namespace,
        "lifetime": "detached" if card.detached else "job",
        "age": f"{max(0.0, time.time() - card.created_at):.0f} s",
        "job": card.job_id or "-",
    }
