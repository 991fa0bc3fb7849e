"""`fray queue tokens`: tokens of a server that are good for some roles and queues only."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fray.backend import release_lock, wait_for_lock

ROLES = ("push", "take", "read", "admin")

_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group()
def tokens() -> None:
    """Make tokens for `fray queue serve --tokens FILE`, list and remove them; the server notices."""


@tokens.command()
@_file
@click.argument("name")
@click.option("--role", "roles", multiple=True, required=True, type=click.Choice(ROLES), help="May repeat.")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="May repeat; else all queues.")
def add(file: Path, name: str, roles: tuple[str, ...], queues: tuple[str, ...]) -> None:
    """Print a new token, and write what it is good for, not the token itself, to FILE under NAME."""
    from fray_queue._http.protocol.tokens import new_token
    from fray_queue._http.server.auth import Grant, grant_row

    token = new_token()
    grant = Grant(frozenset(roles), frozenset(queues) or None)
    with _changing(file):
        rows = _rows(file)
        if any(row["name"] == name for row in rows):
            raise click.UsageError(f"{str(file)!r} has a token {name!r}; remove it first")
        _write(file, [*rows, json.loads(grant_row(token, grant, name))])
    click.echo(token)


@tokens.command("list")
@_file
def list_(file: Path) -> None:
    """List the tokens of FILE: their names, roles and queues."""
    for row in _rows(file):
        queues = ",".join(row["queues"]) if row["queues"] is not None else "all queues"
        click.echo(f"{row['name']}\t{','.join(row['roles'])}\t{queues}")


@tokens.command()
@_file
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Remove the token NAME from FILE: it is good for nothing from then on."""
    with _changing(file) if file.exists() else contextlib.nullcontext():
        rows = _rows(file)
        left = [row for row in rows if row["name"] != name]
        if len(left) == len(rows):
            raise click.UsageError(f"{str(file)!r} has no token {name!r}")
        _write(file, left)


def _rows(file: Path) -> list[dict[str, Any]]:
    from fray_queue._http.server.auth import read_grants

    if not file.exists():
        return []
    read_grants(file)  # says which line is none
    return [{"name": "", **json.loads(line)} for line in file.read_text().splitlines()]


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[None]:
    """Let nobody else change the file meanwhile; one that is not there yet is made, for its user alone."""
    lock = wait_for_lock(str(file))
    try:
        yield
    finally:
        release_lock(lock)


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the file at once, as a server may read it at any time; it keeps its owner and its rights."""
    file = file.resolve()
    before = file.stat()
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as stream:  # noqa: PTH123
        stream.writelines(json.dumps(row) + "\n" for row in rows)
        with contextlib.suppress(PermissionError):  # of another user or group, which only root may set
            os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, before.st_mode & 0o777)
    temporary.replace(file)
