"""A proxy of HTTP requests that passes requests on and loses answers."""

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from local_server import LocalServer

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class SwallowingProxy(LocalServer):
    """Sits between a client and a server; swallows every so-manieth answer, or holds them back."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._target = urlsplit(url)
        self.swallow_every = 0
        self.strip: set[str] = set()  # headers that do not reach the server
        self.swallow_only: tuple[str, ...] = ()  # methods; empty: all
        self.swallowed = self.answered = 0
        # Makes of a body the pieces in which the answer goes out, and says whether the connection stays open.
        self.reshape: Callable[[bytes], tuple[list[bytes], bool]] | None = None
        self.rewrite: Callable[[bytes], bytes] = lambda answer: answer
        self._flowing = threading.Event()
        self._flowing.set()
        self._dropping = False

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = self._read(request)
        upstream = http.client.HTTPConnection(self._target.hostname or "", self._target.port)
        headers = {
            key: value
            for key, value in request.headers.items()
            if key.lower() not in _HOP | {"host"} | self.strip
        }
        headers["Host"] = self._target.netloc
        try:
            upstream.request(request.command, request.path, body, headers)
            response = upstream.getresponse()
            answer = response.read()
        finally:
            upstream.close()
        if not self._flowing.is_set():
            self._flowing.wait()
            if self._dropping:
                return self._swallow(request)
        self.answered += 1
        counts = not self.swallow_only or request.command in self.swallow_only
        if self.swallow_every and counts and self.answered % self.swallow_every == 0:
            return self._swallow(request)
        if self.reshape is not None:
            return self._send_reshaped(request, *self.reshape(answer))
        sent = self.rewrite(answer)
        length = response.getheader("Content-Length") if sent == answer else None  # of a HEAD, too
        request.send_response(response.status)
        for key, value in response.getheaders():
            if key.lower() not in _HOP:
                request.send_header(key, value)
        request.send_header("Content-Length", length or str(len(sent)))
        request.end_headers()
        request.wfile.write(sent)
        return None

    @staticmethod
    def _send_reshaped(request: BaseHTTPRequestHandler, pieces: list[bytes], stays_open: bool) -> None:
        for piece in pieces:
            request.wfile.write(piece)
        request.close_connection = not stays_open

    def _swallow(self, request: BaseHTTPRequestHandler) -> None:
        self.swallowed += 1
        request.close_connection = True

    @staticmethod
    def _read(request: BaseHTTPRequestHandler) -> bytes | None:
        if "chunked" in request.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(request.rfile.readline(), 16):
                parts.append(request.rfile.read(size))
                request.rfile.readline()
            request.rfile.readline()
            return b"".join(parts)
        length = int(request.headers.get("Content-Length", 0))
        return request.rfile.read(length) if length else None

    def hold_answers(self) -> None:
        """Keep the answers to requests from now on."""
        self._flowing.clear()

    def drop_held(self) -> None:
        """Lose the answers that are held; later ones flow."""
        self._dropping = True
        self._flowing.set()
        threading.Timer(0.2, lambda: setattr(self, "_dropping", False)).start()
