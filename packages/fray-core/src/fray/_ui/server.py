"""The server of the page, in a thread of its own; on this machine alone."""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from fray._ui.hosts import HostCheck, is_loopback
from fray._ui.server_thread import ServerThread
from fray._values.checks import invalid
from fray._values.errors import UnsupportedError

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster
    from fray._ui.queue_routes import QueueServer

TOKEN_VARIABLE = "FRAY_UI_TOKEN"  # noqa: S105 - its name
_MOST_BYTES = 64 * 1024  # of a request
_GOODBYE = 1.0  # seconds that answers under way have when the server stops


class UiServer:
    """A page that shows the jobs of clusters.

    Args:
        clusters: By the names that the page gives them.
        queues: Servers of queues likewise, as `HttpQueue.server` returns them.
        host: What to listen on: an address of this machine alone. `ssh -L` and proxies bring others there.
        port: 0 takes a free one.
        token: What a browser has to show; default is `FRAY_UI_TOKEN`, else one is made.
        allowed_hosts: Names by which browsers reach it through a proxy.
    """

    def __init__(
        self,
        clusters: Mapping[str, "Cluster"],
        *,
        queues: "Mapping[str, QueueServer] | None" = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        if not is_loopback(host):
            raise invalid(
                "host", "an address of this machine alone, as 127.0.0.1 (`ssh -L` leads there)", host
            )
        if not clusters:
            raise invalid("clusters", "one cluster or more, by name", clusters)
        self._host, self._port = host, port
        self._token = token or os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        self._clusters, self._queues, self._allowed = dict(clusters), dict(queues or {}), tuple(allowed_hosts)
        self._server = ServerThread(self._serve, "fray-ui")

    @property
    def url(self) -> str:
        """Where it listens, once it is started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/"

    @property
    def link(self) -> str:
        """What a browser opens: the address with the token, which the page drops from it."""
        return f"{self.url}?token={quote(self._token, safe='', errors='surrogateescape')}"

    @property
    def token(self) -> str:
        """What a browser or a program has to show."""
        return self._token

    def start(self) -> None:
        """Listen; returns when a browser can connect."""
        if find_spec("aiohttp") is None:
            raise UnsupportedError("the page needs aiohttp: pip install 'fray-core[ui]'")
        self._port = self._server.start()

    def stop(self) -> None:
        """Listen no more; calls of clusters that are under way are not waited for."""
        self._server.stop()

    def __enter__(self) -> "UiServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def _serve(self, listens_at: Callable[[int], None], stopping: asyncio.Event) -> None:
        from aiohttp import web

        from fray._ui.pages import Pages
        from fray._ui.request_check import RequestCheck

        check, pages = (
            RequestCheck(HostCheck(self._host, self._allowed), self._token),
            Pages(self._clusters, self._queues),
        )
        app = web.Application(middlewares=[check.check], client_max_size=_MOST_BYTES)
        app.add_routes(pages.routes())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GOODBYE)
        try:
            await runner.setup()
            await web.TCPSite(runner, self._host, self._port).start()
            port: int = runner.addresses[0][1]
            check.cookie = f"fray-ui-{port}"
            listens_at(port)
            await stopping.wait()
        finally:
            pages.close()
            await runner.cleanup()
