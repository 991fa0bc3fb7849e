"""Kept-alive connections to one server, and requests that survive a lost answer.

Each connection has a name and numbers its requests. A request that is sent again, over a new socket or
to a restarted server, carries the same name and number; the server answers it as it did the first time.
"""

import json
import os
import random
import secrets
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fray import FrayError, LeaseExpiredError, QueueUnavailableError, UnsupportedError
from fray_queue._errors import (
    ForeignHostError,
    LimitError,
    NoRoomError,
    QueueExistsError,
    QueueFullError,
    QueueNotFoundError,
    TokenError,
    UnknownRouteError,
)
from fray_queue._http.client.socket import NO_ANSWER, HttpSocket
from fray_queue._http.protocol.limits import PROTOCOL

_LONGEST_PAUSE = 2.0
_AWAY = {502, 503, 504}


@dataclass
class _Line:
    """One connection: its name and number outlive its sockets."""

    socket: HttpSocket | None = None
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0


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
            or not parts.hostname.isprintable()
            or " " in parts.hostname
            or parts.path.strip("/")
            or parts.query
        ):
            raise ValueError(f"a server's address is http://host:port, got {url!r}")
        if parts.username or parts.password:
            raise ValueError("a token in a URL ends in logs: pass token=…, or set FRAY_QUEUE_TOKEN")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._timeout = timeout
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._address = url
        self._headers = f"Host: {_host_header(parts.hostname, parts.port)}\r\nFray-Protocol: {PROTOCOL}\r\n"
        if token is not None:
            self._headers += f"Authorization: Bearer {token}\r\n"
        self._idle: list[_Line] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def ask(
        self, method: str, path: str, body: bytes = b"", *, media: str = "", patience: float = 0.0
    ) -> bytes:
        """Send a request and return the body of its answer.

        Args:
            path: As it goes on the wire: quoted.
            patience: Seconds that the server may take on purpose, beside those that the network takes.

        Raises:
            QueueUnavailableError: The server was away for `timeout` seconds.
        """
        line = self._borrow()
        try:
            head = f"{method} {path} HTTP/1.1\r\n{self._headers}"
            if media:
                head += f"Content-Type: {media}\r\n"
            if method != "GET":
                line.number += 1
                head += f"Fray-Request: {line.name}/{line.number}\r\nContent-Length: {len(body)}\r\n"
            return self._insist(line, f"{head}\r\n".encode("ascii"), body, self._timeout + patience)
        finally:
            with self._lock:
                self._idle.append(line)

    def _insist(self, line: _Line, head: bytes, body: bytes, timeout: float) -> bytes:
        end: float | None = None  # counted from when the server went away, which may be late in a long poll
        pause = 0.0  # at first: an idle connection may have been closed at the other end
        while True:
            try:
                status, answer = self._once(line, head, body, timeout)
                if status < 400:
                    return answer
                if status not in _AWAY:
                    raise _error_of(status, answer)
                problem: Exception = _error_of(status, answer)
            except NO_ANSWER as error:
                if isinstance(error, FrayError | ssl.SSLCertVerificationError):
                    raise
                problem = error
            if end is None:  # a timeout is what it was waited for already
                end = time.monotonic() + (0.0 if isinstance(problem, TimeoutError) else self._timeout)
            if time.monotonic() + pause >= end:
                raise QueueUnavailableError(
                    f"{self._address} did not answer for {self._timeout:g} s: "
                    f"{type(problem).__name__}: {problem}"
                ) from problem
            time.sleep(random.uniform(0, pause))  # noqa: S311 - jitter is no secret
            pause = min(_LONGEST_PAUSE, pause * 2 or 0.05)

    def _once(self, line: _Line, head: bytes, body: bytes, timeout: float) -> tuple[int, bytes]:
        if line.socket is None:
            line.socket = HttpSocket(self._host, self._port, timeout=self._timeout, tls=self._tls)
        try:
            status, answer, kept_alive = line.socket.exchange(head, body, timeout)
        except BaseException:  # also an interrupt: what is still under way would answer the next request
            _hang_up(line)
            raise
        if not kept_alive:
            _hang_up(line)
        return status, answer

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


def _host_header(host: str, port: int | None) -> str:
    """Return what a URL says of its host, as a header says it."""
    name = host.partition("%")[0] if ":" in host else host.encode("idna").decode()
    return (f"[{name}]" if ":" in name else name) + (f":{port}" if port else "")


def _error_of(status: int, answer: bytes) -> Exception:
    try:
        body: dict[str, Any] = json.loads(answer)
        code, message, facts = body["error"], body["message"], body["facts"]
    except (ValueError, KeyError, TypeError):
        code, message, facts = "", f"the server answered {status}: {answer[:200]!r}", ()
    if code == "lease_expired":
        return LeaseExpiredError(*facts)
    if code == "full" and facts and facts[0] == "max_size":
        return NoRoomError(message, bool(facts[1]), int(facts[2]))
    if code == "upgrade":
        return UnsupportedError(message)
    if code == "queue_not_found":
        return QueueNotFoundError(facts[0], tuple(facts[1]))
    if status in (401, 403) and code != "foreign":
        return TokenError(message)
    kinds = {
        "foreign": ForeignHostError,
        "queue_exists": QueueExistsError,
        "full": QueueFullError,
        "limit": LimitError,
        "slow": LimitError,
    }
    if status in (404, 405) and code == "http":
        return UnknownRouteError(message)
    if status in _AWAY:
        return QueueUnavailableError(message)
    return kinds.get(code, ValueError)(message)
