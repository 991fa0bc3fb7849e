"""`fray actors`: the named actors of this machine that jobs share, and how to end one."""

import json
import time
from typing import TYPE_CHECKING, Any

import click

# What the commands need is imported when one runs: `fray --help` imports this file.
if TYPE_CHECKING:
    from fray_local._process.owner.actor_directory import ActorDirectory, ActorRecord


@click.group()
def actors() -> None:
    """List shared actors, and end them."""


@actors.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def list_actors(as_json: bool) -> None:
    """List the living actors that other processes can find."""
    from fray.backend import print_table

    records = [record for directory in _directories() for record in directory.living()]
    if as_json:
        click.echo(json.dumps([_row(record) for record in records], indent=2))
        return
    columns = ["name", "actor", "namespace", "lifetime", "age", "job"]
    print_table(columns, [[_row(record)[column] for column in columns] for record in records])


@actors.command("kill")
@click.argument("name")
@click.option("--namespace", help="Where it is, should several namespaces have the name.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the end of its process.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def kill(name: str, namespace: str | None, timeout: float, as_json: bool) -> None:
    """End an actor: its callers get ActorDiedError, its name is free."""
    from fray import ActorNotFoundError
    from fray_local._process.owner.shared_actors import kill as kill_at

    found = [
        (directory, record)
        for directory in _directories(namespace)
        for record in directory.living()
        if record.name == name
    ]
    if len(found) > 1:
        where = ", ".join(record.namespace for _, record in found)
        raise click.UsageError(f"{name!r} is in several namespaces: {where}; say which with --namespace")
    if not found:
        known = [record.name for directory in _directories() for record in directory.living()]
        raise ActorNotFoundError(name, known)
    directory, record = found[0]
    try:
        connection = directory.find(name)
    except TimeoutError as error:
        raise click.ClickException(str(error)) from None
    directory.remove(record)
    if connection is not None and not kill_at(connection[1], timeout):
        raise click.ClickException(
            f"{record.label} was asked to end and its name is free, but its process does not answer: it may "
            "be stopped (SIGSTOP), and ends when it continues; `ps` shows it as "
            "fray_local._process.worker.detached_actor"
        )
    click.echo(json.dumps(_row(record), indent=2) if as_json else f"killed {record.label}")


def _directories(namespace: str | None = None) -> "list[ActorDirectory]":
    """Return that of one namespace, or those of all."""
    from fray_local._process.owner.actor_directory import ActorDirectory, namespaces

    return [ActorDirectory(one) for one in ([namespace] if namespace else namespaces())]


def _row(record: "ActorRecord") -> dict[str, Any]:
    return {
        "name": record.name,
        "actor": record.label.partition("(")[0],
        "namespace": record.namespace,
        "lifetime": "detached" if record.detached else "job",
        "age": f"{max(0.0, time.time() - record.created_at):.0f} s",
        "job": record.job_id or "-",
    }
