"""A server of many named queues, in a thread of its own."""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import uvloop
from aiohttp import web

from fray import FrayError
from fray.backend import ServerThread, is_loopback
from fray_queue._checks import check_bounds, check_name
from fray_queue._engines.opening import engine_at
from fray_queue._http.client.queue import HttpQueue, token_from_environment
from fray_queue._http.protocol.limits import Limits
from fray_queue._http.protocol.tokens import forget_token, keep_token, kept_token, new_token
from fray_queue._http.server.api import Api
from fray_queue._http.server.auth import Auth
from fray_queue._http.server.dispatch import Dispatch
from fray_queue._http.server.engine_store import on_engine
from fray_queue._http.server.listening import ListeningServer
from fray_queue._http.server.registry import QueueRegistry
from fray_queue._http.server.request_check import RequestCheck
from fray_queue._http.server.sqlite_store import in_sqlite
from fray_queue._http.server.store import OpenStore
from fray_queue._sqlite.clocks import manual_clock, process_clock

_log = logging.getLogger("fray.queue")
_SAMPLE_EVERY = 1.0
_ENGINE_SECONDS = 5.0  # that one request to an engine may take
_GOODBYE = 2.0  # seconds that answers under way have when the server stops


class HttpQueueServer:
    """Queues over HTTP. Payloads are opaque bytes to it: it never unpickles.

    Args:
        host: The address to listen on; beyond loopback only with a token.
        port: 0 takes a free one.
        token: The token that clients must send; by default that of `FRAY_QUEUE_TOKEN`. A server on loopback
            makes one if there is none. `new_queue` uses it, and clients of the same user find it in a file
            that only that user can read.
        store: A folder that keeps pushes, leases, attempts and dead letters across crashes.
        engine: The URL of a Redis or PostgreSQL that holds the queues instead. The password comes from the
            environment. Others may use the same engine; its clock times the leases.
        certificate: PEM files of certificate and key, for HTTPS.
        allowed_hosts: Names by which clients reach the server, beside its own.
        tokens: A file of further tokens, each for some roles and queues, as `fray queue tokens` writes it.
            It is read again when it changes.
        clock: Seconds since the epoch, for tests; by default a clock that a step of the wall clock does not
            change.

    Raises:
        ValueError: It would listen beyond loopback without a token, or the folder belongs to something else.
        QueueUnavailableError: The engine does not answer when the server is started.
        UnsupportedError: `limits` sets a limit that an engine does not support.
        DamagedError: The content of the folder differs from what was written.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        store: str | Path | None = None,
        *,
        engine: str | None = None,
        certificate: tuple[str | Path, str | Path] | None = None,
        allowed_hosts: Iterable[str] = (),
        tokens: str | Path | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._token = token_from_environment(token)
        self._makes_token, self._any_port = self._token is None, port == 0
        self._tokens = None if tokens is None else Path(tokens)
        if self._token is None and not is_loopback(host):
            raise ValueError(
                f"refusing to listen on {host!r} without a token: anybody could read and write the queues; "
                "set FRAY_QUEUE_TOKEN, or pass token= (--token-file)"
            )
        if store is not None and engine is not None:
            raise ValueError(
                "a server keeps its queues in a folder or on an engine, not on both: give store= or engine="
            )
        if store is not None and re.match(r"[a-z][a-z0-9+.-]+:/", str(store)):  # a Path makes one / of two
            raise ValueError(
                f"store= is a local folder, not a URL ({str(store).partition(':')[0]}:…): "
                "give a Redis or PostgreSQL that is to keep the queues as engine= (--engine)"
            )
        self._host, self._port = host, port
        self._certificate, self._allowed_hosts = certificate, tuple(allowed_hosts)
        self._limits = limits or Limits()
        self._open_store: OpenStore
        if engine is not None:
            found = engine_at(engine, seconds=_ENGINE_SECONDS, clock=clock)
            self._open_store = on_engine(found, limits=self._limits)
        else:
            lease_clock = process_clock() if clock is None else manual_clock(clock)
            self._open_store = in_sqlite(store, limits=self._limits, clock=lease_clock)
        self._registry: tuple[QueueRegistry, asyncio.AbstractEventLoop] | None = None
        # uvloop takes a fifth less time for a request.
        self._server = ServerThread(self._serve, "fray-queue-server", loop_factory=uvloop.new_event_loop)

    @property
    def url(self) -> str:
        """Where clients find it, once it is started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._certificate else 'http'}://{host}:{self._port}"

    @property
    def port(self) -> int:
        """What it listens on, once it is started."""
        return self._port

    @property
    def token(self) -> str:
        """What clients have to show, once the server is started."""
        if self._token is None:
            raise ValueError("the server has no token yet: start it first")
        return self._token

    def start(self) -> "HttpQueueServer":
        """Listen; returns when clients can connect."""
        if self._server.started:
            raise ValueError("the server is started already; make another one for a second start")
        if self._token is None:  # one of before is good for the clients that have it
            self._token = kept_token(self._port) or new_token()
        if self._makes_token and not self._any_port:  # before it listens: clients wait for it already
            self._keep_token()
        self._port = self._server.start()
        if self._makes_token and self._any_port:
            self._keep_token()
        return self

    def _keep_token(self) -> None:
        """Write the token that the server made where clients of the same user look for it."""
        try:
            keep_token(self._port, self.token)
        except OSError as error:
            _log.warning("only new_queue hands on the token of %s: it cannot be written: %s", self.url, error)

    def stop(self) -> None:
        """Stop listening, write what is pending, and end the thread."""
        if (
            self._server.stop() and self._makes_token and self._any_port
        ):  # nobody will find another server there
            forget_token(self._port)

    def new_queue(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
    ) -> "HttpQueue[Any]":
        """Make a queue, or open the one of that name and those settings."""
        queue: HttpQueue[Any] = HttpQueue(
            self.url,
            name,
            token=self._token,
            max_attempts=max_attempts,
            max_size=max_size,
            max_dead=max_dead,
            create=True,
            ca_file=self._certificate[0] if self._certificate else None,
        )
        queue.size()
        return queue

    def make_queue(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
    ) -> None:
        """Make a queue as `new_queue` does, without a client: the server may have no address for one here."""
        settings = check_bounds(max_attempts, max_size, max_dead)
        if self._registry is None:
            raise ValueError("the server has no queues before it is started, and after it is stopped")
        registry, loop = self._registry
        asyncio.run_coroutine_threadsafe(registry.create(check_name(name), settings, None), loop).result()

    def __enter__(self) -> "HttpQueueServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def _serve(self, listens_at: Callable[[int], None], stopping: asyncio.Event) -> None:
        auth = Auth(self.token, file=self._tokens)
        registry = QueueRegistry(self._open_store, limits=self._limits)
        dispatch = Dispatch(Api(registry).handlers(), RequestCheck(self._host, auth, self._allowed_hosts))
        server = ListeningServer(
            dispatch,
            head_seconds=self._limits.body_seconds,
            request_factory=self._request,
            access_log=None,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_GOODBYE)
        chores = [asyncio.create_task(_sample(registry)), asyncio.create_task(server.close_late())]
        try:
            await runner.setup()
            site = web.TCPSite(runner, self._host, self._port, ssl_context=self._tls())
            await site.start()
            self._registry = registry, asyncio.get_running_loop()
            listens_at(runner.addresses[0][1])
            await stopping.wait()
            registry.closing = True
            registry.wake_all()
        finally:
            self._registry = None
            for chore in chores:
                chore.cancel()
            await _hang_up(runner)
            await registry.close()

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: "asyncio.Task[None]"
    ) -> web.BaseRequest:
        loop, size = task.get_loop(), self._limits.body_bytes
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=size)

    def _tls(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._certificate)
        return context


async def _hang_up(runner: web.ServerRunner) -> None:
    """Let answers under way be given, then close; a TLS peer that never closes is not waited for."""
    connections = runner.server.connections if runner.server is not None else []
    transports = [connection.transport for connection in connections]
    await runner.cleanup()
    for transport in transports:
        if transport is not None:
            transport.abort()
    await asyncio.sleep(0)  # the loop closes them in its next turn


async def _sample(registry: QueueRegistry) -> None:
    logged = ""
    while True:
        await asyncio.sleep(_SAMPLE_EVERY)
        try:
            await registry.sample()
        except (FrayError, OSError) as error:  # clients get it; this is only about numbers
            _log.debug("no sample of the queues: %s", error)
        except Exception as error:  # noqa: BLE001 - a sample is also what finds an engine that was away
            if logged != (logged := repr(error)):
                _log.error("no sample of the queues: %s", logged)  # its frames would hold connections
        else:
            logged = ""
