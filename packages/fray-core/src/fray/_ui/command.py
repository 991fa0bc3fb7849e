"""`fray ui`: the page for jobs and queues."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fray._cli.serving import ending_signal, token_in
from fray._cli.shared import one_line, open_cluster

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._ui.queue_routes import QueueServer


def _name(spec: str, cluster: "Cluster") -> str:
    """Return what a page calls a cluster: as its user does, or the kind that it is."""
    return spec or str(getattr(cluster, "spec", "the current cluster")).partition("?")[0]


def _place(url: str) -> str:
    """Return what a page calls a server of queues: its host and port."""
    return url.partition("://")[2].partition("/")[0] or url


def _queue_server(url: str, token: str | None, ca_file: str | None) -> "QueueServer":
    from fray._discovery.plugins import QUEUES, load
    from fray._queues.opening import without_secrets

    if not url.startswith(("http://", "https://")):
        raise ValueError(
            f"--queues takes the address of a server, http://HOST:PORT, got {without_secrets(url)!r}"
        )
    server: QueueServer = load(QUEUES, url.partition(":")[0]).server(url, token, ca_file=ca_file)
    return server


@click.command()
@click.option(
    "--cluster",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="A cluster, e.g. local or ray, or a name that `fray config` gives one; may be repeated.",
)
@click.option(
    "--queues", "urls", multiple=True, metavar="URL",
    help="A server of queues, http://HOST:PORT; may be repeated.",
)  # fmt: skip
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token of these servers; else FRAY_QUEUE_TOKEN, or that of your own server.",
)
@click.option(
    "--ca-file", type=click.Path(exists=True, dir_okay=False), help="Certificates to trust, for https."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one."
)
@click.option(
    "--allow-host", "allowed_hosts", multiple=True, metavar="NAME", help="A name by which a proxy leads here."
)
@click.option("--open/--no-open", "opens", default=False, help="Open it in the browser of this machine.")
def ui(
    specs: tuple[str, ...],
    urls: tuple[str, ...],
    token_file: Path | None,
    ca_file: str | None,
    port: int,
    allowed_hosts: tuple[str, ...],
    opens: bool,
) -> None:
    """Show jobs and queues as a page, until Ctrl-C; prints the link to it.

    It listens on this machine alone. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST.
    """
    from fray._ui.opening import opened
    from fray._ui.server import UiServer

    clusters = {_name(spec, cluster := open_cluster(spec or None)): cluster for spec in specs or ("",)}
    with one_line():
        token = None if token_file is None else token_in(token_file)
        queues = {_place(url): _queue_server(url, token, ca_file) for url in urls}
        server = UiServer(clusters, queues=queues, port=port, allowed_hosts=allowed_hosts)
        server.start()
    try:
        wait = ending_signal()
        click.echo(server.link)
        sys.stdout.flush()
        with opened(server.link) if opens else contextlib.nullcontext():
            wait()
    finally:
        server.stop()
