"""What a client does that takes time: in a thread, which blocks, or in an event loop, which continues.

All else of the client is written once, as coroutines. In a thread nothing that they await ever suspends, so
`run_blocking` has them at their end in one step.
"""

import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from fray_queue._http.client.address import ServerAddress
from fray_queue._http.client.socket import HttpSocket

R = TypeVar("R")

LAST_WORDS = 1.0
"""Seconds that an interrupt or a cancellation may be held up."""


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

    def turn(self, what: str, seconds: float) -> AbstractAsyncContextManager[float]:
        """Return what those that wait for one thing enter in turn; after so long one enters without a turn.

        It gives the seconds that a turn has.
        """
        ...

    async def last_words(self, call: Coroutine[Any, Any, None]) -> None:
        """Send a request after an interrupt or a cancellation, where it does not take long."""
        ...


class BlockingSocket:
    """An `HttpSocket` whose exchange is awaited, and blocks.

    Args:
        within: Returns how many of so many seconds a step may take.
    """

    def __init__(self, socket: HttpSocket, within: Callable[[float], float]) -> None:
        self._socket, self._within = socket, within

    async def exchange(self, head: bytes, body: bytes, timeout: float) -> tuple[int, bytes, bool]:
        """Send a request and return its answer; see `HttpSocket.exchange`."""
        return self._socket.exchange(head, body, self._within(timeout))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class BlockingNetwork:
    """The network as a thread uses it."""

    def __init__(self) -> None:
        self._last = threading.local()  # its `end` is when the last words of a thread are to be over

    async def connect(self, address: ServerAddress, timeout: float) -> Socket:
        """Open a socket."""
        timeout = self._within(timeout)
        opened = HttpSocket(address.host, address.port, timeout=timeout, tls=address.tls)
        return BlockingSocket(opened, self._within)

    def _within(self, seconds: float) -> float:
        """Return how many of so many seconds a step may take."""
        end: float | None = getattr(self._last, "end", None)
        if end is None:
            return seconds
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server did not answer before an interrupt had to go on")
        return min(seconds, left)

    async def sleep(self, seconds: float) -> None:
        """Block the thread before another try; last words have one."""
        if getattr(self._last, "end", None) is not None:
            raise TimeoutError("an interrupt is not held up for another try")
        time.sleep(seconds)

    def slot(self, *, waits: bool) -> AbstractAsyncContextManager[Any]:
        """Hold nothing: a thread makes one request at a time."""
        return nullcontext()

    def turn(self, what: str, seconds: float) -> AbstractAsyncContextManager[float]:
        """Hold nothing: a thread that waits is a thread."""
        return nullcontext(seconds)

    async def last_words(self, call: Coroutine[Any, Any, None]) -> None:
        """Send it, with one try for each request, and for a moment at most."""
        self._last.end = time.monotonic() + LAST_WORDS
        try:
            await call
        finally:
            self._last.end = None


def run_blocking(call: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, and return its result."""
    try:
        call.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    call.close()
    raise AssertionError("a call over blocking sockets waited for an event loop")
