"""aiohttp's connections, closed when a request does not begin as it should."""

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

_log = logging.getLogger("fray.queue")
_LOOK_EVERY = 1.0


class Connection(RequestHandler):
    """A connection that knows since when the head of a request is awaited.

    A client that says nothing, or half a head, holds a descriptor before it has shown any token. One that
    made a request may be idle before its next, as long as aiohttp lets it.
    """

    __slots__ = ("_awaited_since",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._awaited_since: float | None = self._loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        complete = self._request_count
        super().data_received(data)
        if self._request_count != complete:
            self._awaited_since = None
        elif self._awaited_since is None and self._is_idle():  # else it is a body
            self._awaited_since = self._loop.time()

    def close_if_late(self, seconds: float) -> None:
        """Hang up when a head is awaited for longer."""
        since = self._awaited_since
        if since is not None and self._is_idle() and self._loop.time() - since > seconds:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP. aiohttp would log a traceback that quotes the line."""
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        reason = type(exc).__name__ if exc is not None else HTTPStatus(status).phrase
        _log.warning("a malformed request from %s was refused: %s", request.remote, reason)
        response = web.Response(status=status, text="the request is no HTTP that this server understands\n")
        response.force_close()
        return response

    def _is_idle(self) -> bool:
        return self._waiter is not None and not self._waiter.done()


class ListeningServer(web.Server):
    """aiohttp's server with such connections.

    Args:
        head_seconds: Time in which the head of a request has to arrive.
    """

    def __init__(self, handler: Any, *, head_seconds: float, **options: Any) -> None:
        super().__init__(handler, **options)
        self._head_seconds = head_seconds

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)

    async def close_late(self) -> None:
        """Close, until cancelled, what is late."""
        while True:
            await asyncio.sleep(min(_LOOK_EVERY, self._head_seconds))
            for connection in self.connections:
                assert isinstance(connection, Connection)
                connection.close_if_late(self._head_seconds)
