"""Kept-alive connections to one server, and requests that survive a lost answer.

Each connection has a name and numbers its requests. A request that is sent again, over a new socket or
to a restarted server, carries the same name and number; the server answers it as it did the first time.
"""

import http.client
import json
import os
import random
import secrets
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fray import FrayError, LeaseExpiredError, QueueUnavailableError
from fray_queue._errors import LimitError, QueueExistsError, QueueFullError, QueueNotFoundError, TokenError

_LONGEST_PAUSE = 2.0
_SMALL = 1 << 16  # bytes of a body that are copied in order to go out with the head
_AWAY = {502, 503, 504}
_RETRIED = (OSError, http.client.HTTPException)


class _Plain(http.client.HTTPConnection):
    """A connection that sends head and body of a request together: apart, they wake the server twice."""

    _parts: list[bytes] | None = None

    def ask(self, request: "_Request") -> None:
        self._parts = []
        try:
            self.putrequest(request.method, request.path, skip_accept_encoding=True)
            for name, value in request.headers.items():
                self.putheader(name, value)
            if request.body is not None:
                self.putheader("Content-Length", str(len(request.body)))
            self.endheaders(request.body)
        finally:
            parts, self._parts = self._parts, None
        if request.body is None or len(request.body) <= _SMALL:
            parts = [b"".join(parts)]
        for part in parts:
            super().send(part)

    def send(self, data: Any) -> None:
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class _Secure(_Plain, http.client.HTTPSConnection):
    pass


@dataclass
class _Line:
    """One connection: its name and number outlive its sockets."""

    socket: _Plain | None = None
    timeout: float = 0.0  # of the socket
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0


@dataclass(slots=True)
class _Request:
    method: str
    path: str
    body: bytes | None
    headers: dict[str, str]
    patience: float


class Connections:
    """Connections to one server; a thread that asks borrows one, and gives it back.

    Args:
        timeout: Seconds that a request is repeated for while the server is away.
    """

    def __init__(self, url: str, token: str | None, *, timeout: float, ca_file: str | Path | None) -> None:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path.strip("/")
            or parts.query
        ):
            raise ValueError(f"a server's address is http://host:port, got {url!r}")
        if parts.username or parts.password:
            raise ValueError("a token in a URL ends in logs: pass token=…, or set FRAY_QUEUE_TOKEN")
        self._host, self._port = parts.hostname, parts.port
        self._timeout = timeout
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._address = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._idle: list[_Line] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, media: str = "", patience: float = 0.0
    ) -> bytes:
        """Send a request and return the body of its answer.

        Args:
            patience: Seconds that the server may take on purpose, beside those that the network takes.

        Raises:
            QueueUnavailableError: The server was away for `timeout` seconds.
        """
        line = self._borrow()
        try:
            headers = dict(self._headers)
            if media:
                headers["Content-Type"] = media
            if method != "GET":
                line.number += 1
                headers["Fray-Request"] = f"{line.name}/{line.number}"
            return self._insist(line, _Request(method, path, body, headers, patience))
        finally:
            with self._lock:
                self._idle.append(line)

    def _insist(self, line: _Line, request: _Request) -> bytes:
        end = time.monotonic() + self._timeout
        pause = 0.0  # at first: an idle connection may have been closed at the other end
        while True:
            try:
                status, answer = self._once(line, request)
                if status < 400:
                    return answer
                if status not in _AWAY:
                    raise _error_of(status, answer)
                problem: Exception = _error_of(status, answer)
            except _RETRIED as error:
                if isinstance(error, FrayError | ssl.SSLCertVerificationError):
                    raise
                problem = error
                _hang_up(line)
            if time.monotonic() + pause >= end:
                raise QueueUnavailableError(
                    f"{self._address} did not answer for {self._timeout:g} s: "
                    f"{type(problem).__name__}: {problem}"
                ) from problem
            time.sleep(random.uniform(0, pause))  # noqa: S311 - jitter is no secret
            pause = min(_LONGEST_PAUSE, pause * 2 or 0.05)

    def _once(self, line: _Line, request: _Request) -> tuple[int, bytes]:
        if line.socket is None or line.socket.sock is None:
            line.socket, line.timeout = self._connect(), self._timeout
        timeout = self._timeout + request.patience
        if line.timeout != timeout:
            line.socket.sock.settimeout(timeout)
            line.timeout = timeout
        line.socket.ask(request)
        response = line.socket.getresponse()
        return response.status, response.read()

    def _connect(self) -> _Plain:
        if self._tls is None:
            connection = _Plain(self._host, self._port, timeout=self._timeout)
        else:
            connection = _Secure(self._host, self._port, timeout=self._timeout, context=self._tls)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _borrow(self) -> _Line:
        with self._lock:
            if self._pid != os.getpid():  # a forked child must not speak on its parent's sockets
                self._idle, self._pid = [], os.getpid()
            return self._idle.pop() if self._idle else _Line()

    def close(self) -> None:
        """Hang up; the next request connects anew."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            _hang_up(line)


def _hang_up(line: _Line) -> None:
    if line.socket is not None:
        line.socket.close()
        line.socket = None


def _error_of(status: int, answer: bytes) -> Exception:
    try:
        body: dict[str, Any] = json.loads(answer)
        code, message, facts = body["error"], body["message"], body["facts"]
    except (ValueError, KeyError, TypeError):
        code, message, facts = "", f"the server answered {status}: {answer[:200]!r}", ()
    if code == "lease_expired":
        return LeaseExpiredError(*facts)
    if code == "queue_not_found":
        return QueueNotFoundError(facts[0], tuple(facts[1]))
    if status in (401, 403):
        return TokenError(message)
    kinds = {"queue_exists": QueueExistsError, "full": QueueFullError, "limit": LimitError}
    if status in _AWAY:
        return QueueUnavailableError(message)
    return kinds.get(code, ValueError)(message)
