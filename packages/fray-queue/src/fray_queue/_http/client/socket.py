"""One kept-alive connection to an HTTP server: a request goes out whole, its answer comes back whole.

`http.client` reads the headers of an answer with the parser for e-mail, which takes longer than all else
that a client does for a small request. Here llhttp reads them, the parser of Node.js.
"""

import contextlib
import socket
import ssl

from httptools import HttpParserError, HttpResponseParser

_SMALL = 1 << 16  # bytes of a body that are copied in order to go out with the head: apart, they wake twice
_CHUNK = 1 << 16
PIECE = 1 << 20
"""Bytes of a body that have to go out within the time of one step."""

_KEPT_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # routers forget after 5 minutes

NO_ANSWER = (OSError, HttpParserError)
"""What `HttpSocket` raises when an answer did not come, or was none."""


def prepare(sock: socket.socket) -> None:
    """Send small requests at once, and keep a connection alive on which an answer takes long."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEPT_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class HttpSocket:
    """A connection for one request at a time.

    Args:
        timeout: Seconds that each step of an exchange may take.
        tls: How to speak TLS; None for plain HTTP.

    Raises:
        OSError: Nobody listens there, or the certificate is not good.
    """

    def __init__(self, host: str, port: int, *, timeout: float, tls: ssl.SSLContext | None) -> None:
        self._timeout = timeout
        self._answer = Answer()
        self._sock = socket.create_connection((host, port), timeout)
        try:
            prepare(self._sock)
            if tls is not None:
                self._sock = tls.wrap_socket(self._sock, server_hostname=host)
        except BaseException:
            self._sock.close()
            raise

    def exchange(self, head: bytes, body: bytes, timeout: float) -> tuple[int, bytes, bool]:
        """Send a request; return the status and the body of its answer, and whether another may follow.

        Raises:
            OSError: The answer did not come. The connection is of no more use.
            HttpParserError: What was received is not one answer. The same.
        """
        if self._timeout != timeout:
            self._sock.settimeout(timeout)
            self._timeout = timeout
        answer = self._answer
        answer.begin()
        try:
            self._send(head, body)
        except ConnectionError:
            # A server that refuses a body may say so and hang up before it has all of it.
            with contextlib.suppress(*NO_ANSWER):
                self._receive(answer)
                return answer.status, b"".join(answer.parts), False
            raise
        self._receive(answer)
        return answer.status, b"".join(answer.parts), answer.kept_alive

    def _send(self, head: bytes, body: bytes) -> None:
        """Send a request in pieces: `sendall` has its time for all that it is given."""
        if len(body) <= _SMALL:
            self._sock.sendall(head + body)
            return
        self._sock.sendall(head)
        rest = memoryview(body)
        while rest:
            self._sock.sendall(rest[:PIECE])
            rest = rest[PIECE:]

    def _receive(self, answer: "Answer") -> None:
        while not answer.status:
            data = self._sock.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the server closed the connection before its answer was complete")
            answer.feed(data)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


class Answer:
    """What the parser calls back; `status` is set when the answer is complete."""

    __slots__ = ("_parser", "feed", "kept_alive", "parts", "status")

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.feed = self._parser.feed_data
        self.begin()

    def begin(self) -> None:
        """Forget the answer before."""
        self.parts: list[bytes] = []
        self.status, self.kept_alive = 0, False

    def on_message_begin(self) -> None:
        if self.status:
            raise ValueError("a second answer to one request")

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # others before it only say that it takes long
            self.status, self.kept_alive = status, self._parser.should_keep_alive()
