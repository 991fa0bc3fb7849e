"""`fray ui`: the page for jobs and queues."""

import signal
import sys
import threading
from typing import TYPE_CHECKING

import click

from fray._cli.shared import one_line, open_cluster

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster


def _name(spec: str, cluster: "Cluster") -> str:
    """Return what a page calls a cluster: as its user does, or the kind that it is."""
    return spec or str(getattr(cluster, "spec", "the current cluster")).partition("?")[0]


@click.command()
@click.option(
    "--cluster",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="A cluster, e.g. local or ray, or a name that `fray config` gives one; may be repeated.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one."
)
@click.option(
    "--allow-host", "allowed_hosts", multiple=True, metavar="NAME", help="A name by which a proxy leads here."
)
@click.option("--open/--no-open", "opens", default=False, help="Open it in the browser of this machine.")
def ui(specs: tuple[str, ...], port: int, allowed_hosts: tuple[str, ...], opens: bool) -> None:
    """Show jobs and queues as a page, until Ctrl-C; prints the link to it.

    It listens on this machine alone. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST.
    """
    from fray._ui.server import UiServer

    clusters = {_name(spec, cluster := open_cluster(spec or None)): cluster for spec in specs or ("",)}
    with one_line():
        server = UiServer(clusters, port=port, allowed_hosts=allowed_hosts)
        server.start()
    try:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        click.echo(server.link)
        sys.stdout.flush()
        if opens:
            import webbrowser

            webbrowser.open(server.link)
        stop.wait()
    finally:
        server.stop()
