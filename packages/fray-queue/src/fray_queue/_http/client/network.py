"""What a client does that takes time: in a thread, which blocks, or in an event loop, which continues.

All else of the client is written once, as coroutines. In a thread nothing that they await ever suspends, so
`run_blocking` has them at their end in one step.
"""

import time
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from fray_queue._http.client.address import ServerAddress
from fray_queue._http.client.socket import HttpSocket

R = TypeVar("R")


class Socket(Protocol):
    """A connection to a server, for one request at a time."""

    async def exchange(self, head: bytes, body: bytes, timeout: float) -> tuple[int, bytes, bool]: ...

    def close(self) -> None: ...


class Network(Protocol):
    """How sockets are opened, and time passes."""

    async def connect(self, address: ServerAddress, timeout: float) -> Socket: ...

    async def sleep(self, seconds: float) -> None: ...

    def slot(self, *, waits: bool) -> AbstractAsyncContextManager[Any]:
        """Return what a request holds meanwhile; one that waits at the server on purpose keeps out nobody."""
        ...

    def turn(self, what: str) -> AbstractAsyncContextManager[Any]:
        """Return what the waiters for one thing hold, one at a time."""
        ...

    async def last_words(self, call: Coroutine[Any, Any, None]) -> None:
        """Send a request after an interrupt or a cancellation, where it does not take long."""
        ...


class BlockingSocket:
    """An `HttpSocket` whose exchange is awaited, and blocks."""

    def __init__(self, socket: HttpSocket) -> None:
        self._socket = socket

    async def exchange(self, head: bytes, body: bytes, timeout: float) -> tuple[int, bytes, bool]:
        """Send a request and return its answer; see `HttpSocket.exchange`."""
        return self._socket.exchange(head, body, timeout)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class BlockingNetwork:
    """The network as a thread uses it."""

    async def connect(self, address: ServerAddress, timeout: float) -> Socket:
        """Open a socket."""
        return BlockingSocket(HttpSocket(address.host, address.port, timeout=timeout, tls=address.tls))

    async def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)

    def slot(self, *, waits: bool) -> AbstractAsyncContextManager[Any]:
        """Hold nothing: a thread makes one request at a time."""
        return nullcontext()

    def turn(self, what: str) -> AbstractAsyncContextManager[Any]:
        """Hold nothing: a thread that waits is a thread."""
        return nullcontext()

    async def last_words(self, call: Coroutine[Any, Any, None]) -> None:
        """Send it."""
        await call


def run_blocking(call: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, and return its result."""
    try:
        call.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    call.close()
    raise AssertionError("a call over blocking sockets waited for an event loop")
