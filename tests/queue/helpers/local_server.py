"""An HTTP server in a thread of the test, for what stands in for a remote one."""

import contextlib
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class _QuietServer(ThreadingHTTPServer):
    """Does not mind clients that hang up; hangs up on those that are still connected when it is closed."""

    request_queue_size = 128  # a connection beyond the five of the library waits a second for another try
    daemon_threads = False  # so that `server_close` waits for them

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connected: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connected.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connected.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for request in list(self._connected):
            with contextlib.suppress(OSError):  # it has just ended
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def send(request: BaseHTTPRequestHandler, status: int, media: str, body: bytes) -> None:
    """Send the whole answer to a request."""
    request.send_response(status)
    request.send_header("Content-Type", media)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


class LocalServer:
    """Answers each request, of whichever method, by `handle`; runs in a `with` block."""

    def __init__(self) -> None:
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_any(self) -> None:
                served.handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_any

            def log_message(self, *args: object) -> None:
                pass

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Read a request and send the answer."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
