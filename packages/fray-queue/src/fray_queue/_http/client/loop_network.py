"""The network as an event loop uses it: sockets of our own, which no loop keeps open when it ends.

An asyncio transport belongs to its loop, and one that is left when the loop is closed can only be leaked. A
plain socket is registered with the loop while a coroutine awaits it, and can be closed at any time.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from httptools import HttpParserError

from fray import FrayError
from fray.backend import Turns
from fray_queue._http.client.address import ServerAddress
from fray_queue._http.client.network import LAST_WORDS, Socket
from fray_queue._http.client.socket import NO_ANSWER, PIECE, Answer, prepare

R = TypeVar("R")

_MOST_SOCKETS = 32  # that one loop opens to one server, apart from those that wait at the server on purpose
_CHUNK = 1 << 16
_TURN = 0.5  # seconds that one coroutine waits at the server before it is the next one's turn


class LoopNetwork:
    """The network of one event loop."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_MOST_SOCKETS)
        self._turns: dict[str, Turns] = {}
        self._last: set[asyncio.Task[None]] = set()  # a task that nobody holds may be collected

    async def connect(self, address: ServerAddress, timeout: float) -> Socket:
        """Open a socket, to the first of the host's addresses that takes it."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            found = await _addresses(loop, address)
            problem: OSError | None = None
            for family, kind, protocol, _, target in found:
                sock = socket.socket(family, kind, protocol)
                try:
                    return await self._opened(loop, sock, address, target)
                except OSError as error:
                    sock.close()
                    problem = error
                except BaseException:
                    sock.close()
                    raise
            raise problem or OSError(f"{address.host!r} has no address")

    @staticmethod
    async def _opened(
        loop: asyncio.AbstractEventLoop, sock: socket.socket, address: ServerAddress, target: Any
    ) -> "LoopSocket":
        sock.setblocking(False)
        await loop.sock_connect(sock, target)
        prepare(sock)
        opened = LoopSocket(loop, sock)
        if address.tls is not None:
            await opened.begin_tls(address.tls, address.host)
        return opened

    async def sleep(self, seconds: float) -> None:
        """Let others run meanwhile."""
        await asyncio.sleep(seconds)

    def slot(self, *, waits: bool) -> AbstractAsyncContextManager[Any]:
        """Hold one of so many, so that a thousand coroutines do not open a thousand sockets."""
        return nullcontext() if waits else self._slots

    def turn(self, what: str, seconds: float) -> AbstractAsyncContextManager[float]:
        """Let one coroutine wait at the server for a thing; the others wait for that one, for so long."""
        return self._turns.setdefault(what, Turns(_TURN)).take(seconds)

    async def last_words(self, call: Coroutine[Any, Any, None]) -> None:
        """Send it in a task: what runs is being cancelled, and may be once more."""
        task = asyncio.create_task(_quietly(call))
        self._last.add(task)
        task.add_done_callback(self._last.discard)
        await asyncio.wait([task], timeout=LAST_WORDS)


async def _addresses(loop: asyncio.AbstractEventLoop, address: ServerAddress) -> list[Any]:
    try:  # a number needs no name server, and no thread for it
        return socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        return await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)


class LoopSocket:
    """A connection for one request at a time, in the event loop that opened it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop, self._sock = loop, sock
        self._answer = Answer()
        self._tls: _Tls | None = None

    async def begin_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Shake hands; the certificate has to be good."""
        tls = _Tls(self._loop, self._sock, context, host)
        await tls.step(tls.session.do_handshake)
        self._tls = tls

    async def exchange(self, head: bytes, body: bytes, timeout: float) -> tuple[int, bytes, bool]:
        """Send a request; see `HttpSocket.exchange`."""
        answer = self._answer
        answer.begin()
        try:
            await self._send(head, body, timeout)
        except ConnectionError:
            # A server that refuses a body may say so and hang up before it has all of it.
            with contextlib.suppress(*NO_ANSWER):
                await self._receive(answer, timeout)
                return answer.status, b"".join(answer.parts), False
            raise
        await self._receive(answer, timeout)
        return answer.status, b"".join(answer.parts), answer.kept_alive

    async def _send(self, head: bytes, body: bytes, timeout: float) -> None:
        first = PIECE - len(head)
        data: bytes | memoryview = head + body[:first]
        rest = memoryview(body)[first:]
        while data:
            async with asyncio.timeout(timeout):
                if self._tls is None:
                    await self._loop.sock_sendall(self._sock, data)
                else:
                    await self._tls.step(lambda data=data, tls=self._tls: tls.session.write(data))  # type: ignore[misc]
            data, rest = rest[:PIECE], rest[PIECE:]

    async def _receive(self, answer: Answer, timeout: float) -> None:
        while not answer.status:
            async with asyncio.timeout(timeout):
                if self._tls is None:
                    data = await self._loop.sock_recv(self._sock, _CHUNK)
                else:
                    data = await self._tls.step(lambda tls=self._tls: tls.session.read(_CHUNK))  # type: ignore[misc]
            if not data:
                raise ConnectionResetError("the server closed the connection before its answer was complete")
            answer.feed(data)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


class _Tls:
    """TLS over a socket of an event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, context: ssl.SSLContext, host: str
    ) -> None:
        self._loop, self._sock = loop, sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    async def step(self, do: Callable[[], R]) -> R:
        """Do a thing of the session, and exchange what it needs for that."""
        while True:
            try:
                result = do()
            except ssl.SSLWantReadError:
                await self._flush()
                if data := await self._loop.sock_recv(self._sock, _CHUNK):
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._loop.sock_sendall(self._sock, data)


async def _quietly(call: Awaitable[None]) -> None:
    with contextlib.suppress(FrayError, OSError, HttpParserError):
        await call
