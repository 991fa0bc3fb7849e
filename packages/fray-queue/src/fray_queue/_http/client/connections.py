"""Kept-alive connections to one server, and requests that survive a lost answer.

Each connection has a name and numbers its requests. A request that is sent again, over a new socket or
to a restarted server, carries the same name and number; the server answers it as it did the first time.
"""

import os
import secrets
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from fray import FrayError, QueueUnavailableError
from fray.backend import retry_delays
from fray_queue._errors import QueueNotFoundError
from fray_queue._http.client.address import ServerAddress
from fray_queue._http.client.errors import error_of
from fray_queue._http.client.network import Network, Socket
from fray_queue._http.client.socket import NO_ANSWER

_LONGEST_PAUSE = 2.0
_LONGEST_IDLE = 60.0  # seconds; a router or a firewall may have forgotten the connection, and says nothing
_MOST_IDLE = 32  # sockets that wait for the next request; more are closed


class Request(NamedTuple):
    """A request of a client.

    Args:
        path: As it is sent: quoted.
        patience: Seconds that the server may take on purpose, beside those that the network takes.
        withdraw: Where what it was granted can be given back, when nobody waits for the answer any more.
    """

    method: str
    path: str
    body: bytes = b""
    media: str = ""
    patience: float = 0.0
    withdraw: str = ""


@dataclass
class _Line:
    """One connection: its name and number outlive its sockets."""

    socket: Socket | None = None
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0
    idle_since: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.name}/{self.number}"


class Connections:
    """Connections to one server; each request borrows one, and returns it.

    Args:
        timeout: Seconds that a request is repeated for while the server is away.
    """

    def __init__(self, address: ServerAddress, network: Network, *, timeout: float) -> None:
        self.address, self.network = address, network
        self._timeout = timeout
        self._idle: list[_Line] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    async def ask(self, request: Request) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            QueueUnavailableError: The server was away for `timeout` seconds.
        """
        async with self.network.slot(waits=request.patience > 0):
            line = self._borrow()
            line.number += request.method != "GET"
            try:
                return await self._insist(line, request)
            except Exception:
                raise
            except BaseException:  # an interrupt or a cancellation: nobody waits for what it may be granted
                _hang_up(line)  # where another interrupt kept that from being done
                if request.withdraw:
                    # Nothing more under that name, whatever ends the wait: the server knows its newest only.
                    key, line = line.key, _Line()
                    await self.network.last_words(self._withdraw(request, key))
                raise
            finally:
                line.idle_since = time.monotonic()
                with self._lock:
                    self._idle.append(line)
                    if len(self._idle) > _MOST_IDLE:  # its name stays: the server remembers each for an hour
                        _hang_up(self._idle[-1 - _MOST_IDLE])

    async def _insist(self, line: _Line, request: Request) -> bytes:
        end: float | None = None  # counted from when the server went away, which may be late in a long poll
        # At once the first time: an idle connection may have been closed at the other end.
        for pause in chain([0.0], retry_delays(0.05, _LONGEST_PAUSE)):
            reused = line.socket is not None
            try:
                status, answer = await self._once(line, request)
                if status < 300:  # a redirection is followed by nobody
                    return answer
                problem = error_of(status, answer)
                if end is not None and request.method == "DELETE" and isinstance(problem, QueueNotFoundError):
                    return b"{}"  # it was done, by a server whose answer was lost and which another replaced
                if not isinstance(problem, QueueUnavailableError):
                    raise problem
            except NO_ANSWER as error:
                if isinstance(error, FrayError | ssl.SSLCertVerificationError):
                    raise
                problem = error
            if end is None:  # after a timeout it was waited already; but the connection may have been dead
                waited = isinstance(problem, TimeoutError) and problem.errno is None and not reused
                end = time.monotonic() + (0.0 if waited else self._timeout)
            if time.monotonic() + pause >= end:
                raise QueueUnavailableError(
                    f"{self.address.url} did not answer for {self._timeout:g} s: "
                    f"{type(problem).__name__}: {problem}"
                ) from problem
            await self.network.sleep(pause)
        raise AssertionError  # the delays never end

    async def _once(self, line: _Line, request: Request) -> tuple[int, bytes]:
        if line.socket is None:
            line.socket = await self.network.connect(self.address, self._timeout)
        head = self.address.head(  # once it is there: a server makes its token when it starts
            request.method, request.path, media=request.media, key=line.key, length=len(request.body)
        )
        try:
            status, answer, kept_alive = await line.socket.exchange(
                head, request.body, self._timeout + request.patience
            )
        except BaseException:  # also an interrupt: what is still under way would answer the next request
            _hang_up(line)
            raise
        if not kept_alive:
            _hang_up(line)
        return status, answer

    async def _withdraw(self, request: Request, key: str) -> None:
        body = f'{{"request": "{key}"}}'.encode()
        with suppress(FrayError, OSError):  # else what was granted comes back when its lease runs out
            await self.ask(Request("POST", request.withdraw, body, "application/json"))

    def _borrow(self) -> _Line:
        if self._pid != os.getpid():  # a forked child must not speak on its parent's sockets
            inherited, self._idle = self._idle, []
            self._lock, self._pid = threading.Lock(), os.getpid()  # another thread may have held it
            for line in inherited:
                _hang_up(line)  # which the parent does not notice: it has the same sockets open
        with self._lock:
            line = self._idle.pop() if self._idle else _Line()
        if time.monotonic() - line.idle_since > _LONGEST_IDLE:
            _hang_up(line)
        return line

    def close(self) -> None:
        """Hang up; the next request connects again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            _hang_up(line)


def _hang_up(line: _Line) -> None:
    if line.socket is not None:
        line.socket.close()
        line.socket = None
