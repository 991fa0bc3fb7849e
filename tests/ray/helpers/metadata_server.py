"""The metadata server of a machine of Google's, on loopback: it says whether the machine is preempted."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from serving import serving


class MetadataServer(ThreadingHTTPServer):
    """It is away for the first `away` questions, and answers the next two with what nobody understands.

    `before_an_answer` is called each time that it is asked whether the machine is `preempted`.
    """

    def __init__(self, away: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.preempted = "FALSE"
        self.asked, self.away = 0, away
        self.before_an_answer: Callable[[], object] = lambda: None

    @property
    def host(self) -> str:
        """Host and port, for `GCE_METADATA_HOST`."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_GET(self) -> None:
        self.server.asked += 1
        asked, away = self.server.asked, self.server.away
        if asked <= away:
            return
        found = "NONE"
        if self.path.endswith("/instance/preempted"):
            self.server.before_an_answer()
            found = self.server.preempted
        self.send_response(200 if self.headers["Metadata-Flavor"] == "Google" else 403)
        self.end_headers()
        self.wfile.write(b"\xff" if away < asked <= away + 2 and away else found.encode())

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def metadata_server(away: int = 0) -> AbstractContextManager[MetadataServer]:
    """Return one that ends with the block."""
    return serving(MetadataServer(away))
