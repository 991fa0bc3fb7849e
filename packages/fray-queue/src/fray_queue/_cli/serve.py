"""`fray queue serve`: a server of queues, until a signal ends it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fray.backend import ending_signal
from fray_queue._cli.access import token_file_option, token_of
from fray_queue._cli.engine import engine_of
from fray_queue._http.protocol.limits import Limits

F = TypeVar("F", bound=Callable[..., Any])

_LIMITS: dict[str, tuple[click.IntRange | click.FloatRange, str]] = {
    "item_bytes": (click.IntRange(min=1), "Size of one item."),
    "queues": (click.IntRange(min=1), "Number of queues."),
    "body_seconds": (
        click.FloatRange(min=0, min_open=True),
        "Time in which a request's head has to arrive, and then its body.",
    ),
    "free_disk": (click.IntRange(min=0), "Bytes of the store's disk that pushes leave free."),
    "store_bytes": (click.IntRange(min=1), "Size that the store may grow to."),
    "queue_items": (click.IntRange(min=1), "Items in one queue, dead letters too."),
    "queue_bytes": (click.IntRange(min=1), "Size of the items in one queue."),
    "total_items": (click.IntRange(min=1), "Items on the server."),
    "total_bytes": (click.IntRange(min=1), "Size of the items on the server."),
}


def _limits(command: F) -> F:
    """Add an option for each limit that an operator has a reason to change."""
    for name, (kind, text) in reversed(_LIMITS.items()):
        default = getattr(Limits, name)
        option = click.option(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=default,
            show_default=default is not None,
            help=text,
        )
        command = option(command)
    return command


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Beyond loopback only with a token.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one."
)
@click.option(
    "--store", type=click.Path(file_okay=False, path_type=Path), help="Keep everything in this folder."
)
@click.option(
    "--engine",
    metavar="URL",
    help="Have the queues on this Redis or PostgreSQL; default is FRAY_QUEUE_ENGINE.",
)
@click.option(
    "--engine-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the engine's URL, which may have a password there.",
)
@token_file_option
@click.option(
    "--tokens",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of further tokens, made by `fray queue tokens add`.",
)
@click.option("--queue", "names", multiple=True, metavar="NAME", help="Make this queue; may be repeated.")
@click.option("--max-attempts", type=int, help="Of the queues made by --queue.")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME", help="A name that clients use.")
@click.option(
    "--certificate", nargs=2, type=click.Path(exists=True), metavar="CERT KEY", help="PEM files, for HTTPS."
)
@_limits
def serve(
    host: str,
    port: int,
    store: Path | None,
    engine: str | None,
    engine_file: Path | None,
    token_file: Path | None,
    tokens: Path | None,
    names: tuple[str, ...],
    max_attempts: int | None,
    allowed_hosts: tuple[str, ...],
    certificate: tuple[str, str] | None,
    **limits: Any,
) -> None:
    """Serve queues until SIGTERM or SIGINT."""
    from fray_queue._http.protocol.tokens import token_path
    from fray_queue._http.server.server import HttpQueueServer

    own = token_of(token_file)
    engine = engine_of(engine, engine_file)
    if engine is not None and store is not None:
        raise click.UsageError("--store keeps queues in a folder, --engine on an engine; give one of them")
    server = HttpQueueServer(
        host,
        port,
        own,
        store,
        engine=engine,
        certificate=certificate,
        allowed_hosts=allowed_hosts,
        tokens=tokens,
        limits=Limits(**limits),
    )
    with server:
        for name in names:
            server.make_queue(name, max_attempts=max_attempts)
        wait = ending_signal()
        if own is None:
            click.echo(f"its token is in {token_path(server.port)}", err=True)
        click.echo(server.url)
        sys.stdout.flush()
        wait()
