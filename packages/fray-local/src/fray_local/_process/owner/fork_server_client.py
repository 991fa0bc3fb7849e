"""The owner's side of its fork servers: starts them when workers are wanted, learns how workers end."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from fray import ContextClosedError
from fray_local._process.owner.event_loop import Channel, EventLoop
from fray_local._process.owner.serial_queue import SerialQueue
from fray_local._process.protocol.messages import (
    Exited,
    Fork,
    Forked,
    ForkFailed,
    KillWorker,
    Message,
    Preload,
    Preloaded,
    StartDetached,
    WorkerSettings,
)

_CODE = (
    "import sys; sys.path[:] = {path!r}; from fray_local._process.fork_server import main; main({descriptor})"
)
_PATIENCE = 10.0
_WORTH_LOADING = 20  # modules: fewer are imported faster than a second fork server starts


class Child(Protocol):
    """What is notified of the start and the end of a worker."""

    number: int

    def started(self, pid: int) -> None: ...
    def ended(self, status: int) -> None: ...
    def failed(self, reason: str) -> None: ...


class ForkServers:
    """Makes workers: from a server that has loaded nothing, or from one that loads what tasks have loaded.

    A module may start threads or keep state that a fork breaks. So the second server starts only where
    more workers will be wanted than there are slots (streams, nested tasks), or where `preload` asks
    for it, and is not used again once an import has left it with a thread or an open file.

    Args:
        preload: Modules that the program says its tasks will need.
    """

    def __init__(self, loop: EventLoop, preload: Sequence[str] = ()) -> None:
        self._loop = loop
        self._cold = ForkServerClient(loop)
        self._second: dict[None, ForkServerClient] = {}  # the other one, once it is wanted
        self._stopped = False
        self._modules: dict[str, None] = dict.fromkeys(preload)  # in the order in which they were loaded
        self._asked = self._promised = bool(preload)
        self._servers: dict[int, ForkServerClient] = {}

    def fork(self, child: Child, settings: WorkerSettings, descriptors: Sequence[int], keep: Any) -> None:
        """Let a worker be made, which takes the descriptors."""
        server = self._server_for(settings)
        self._servers[child.number] = server
        server.fork(child, settings, descriptors, keep)

    def start_detached(self, settings: StartDetached, descriptors: Sequence[int], keep: Any) -> None:
        """Let a detached actor's process be started; this process does not supervise it."""
        self._cold.start_detached(settings, descriptors, keep)

    def kill(self, number: int) -> None:
        """End a worker, and all that its tasks started, at once."""
        server = self._servers.get(number)
        if server is not None:
            server.kill(number)

    def forget(self, number: int) -> None:
        """A worker is gone."""
        self._servers.pop(number, None)

    def expect_more(self) -> None:
        """Workers beyond the slots will be wanted, because tasks wait for others."""
        if not self._asked:
            self._asked = True
            self._preload()

    def loaded(self, modules: Sequence[str]) -> None:
        """Record what a worker has imported."""
        new = [name for name in modules if name not in self._modules]
        self._modules.update(dict.fromkeys(new))
        if self._warm is not None:
            self._warm.preload(new)
        elif self._asked:
            self._preload()

    @property
    def _warm(self) -> "ForkServerClient | None":
        return self._second.get(None)

    def stop(self) -> None:
        """End the fork servers, and those of their workers that are left."""
        self._stopped = True
        for server in (self._cold, *self._second.values()):
            server.stop()

    def _server_for(self, settings: WorkerSettings) -> "ForkServerClient":
        if self._asked and self._warm is None:
            self._preload(at_least=1)
        warm = self._warm
        if warm is None or (settings.env, settings.path) != (warm.env, warm.path):
            return self._cold
        # What is imported without having been asked for may prove unfit: nobody waits for that.
        return warm if warm.fit and (self._promised or not warm.importing) else self._cold

    def _preload(self, at_least: int = _WORTH_LOADING) -> None:
        if self._warm is None and len(self._modules) >= at_least:
            # Before its process starts: of several threads that come here one publishes its own.
            warm = ForkServerClient(self._loop)
            if self._second.setdefault(None, warm) is warm and not self._stopped:
                warm.preload(list(self._modules))


class ForkServerClient:
    """One fork server; its process starts with the first request."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._requests = SerialQueue()
        self._children: dict[int, Child] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._stopped = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            Forked: lambda message: self._tell(message.number, lambda child: child.started(message.pid)),
            Exited: lambda message: self._drop(message.number, lambda child: child.ended(message.status)),
            ForkFailed: lambda message: self._drop(
                message.number, lambda child: child.failed(message.reason)
            ),
            Preloaded: self._preloaded,
        }
        self.fit = True  # to fork workers
        self.importing = 0  # requests to import that are not answered
        self.env, self.path = dict(os.environ), import_path()

    def fork(self, child: Child, settings: WorkerSettings, descriptors: Sequence[int], keep: Any) -> None:
        """Let a worker be made, which takes the descriptors."""
        self._children[child.number] = child
        self._requests.run(partial(self._send, Fork(child.number, settings), descriptors, keep))

    def start_detached(self, settings: StartDetached, descriptors: Sequence[int], keep: Any) -> None:
        """Let a detached actor's process be started."""
        self._requests.run(partial(self._send, settings, descriptors, keep))

    def preload(self, modules: list[str]) -> None:
        """Let later workers find modules imported."""
        if modules and self.fit:
            self.importing += 1
            self._requests.run(partial(self._send, Preload(modules)))

    def kill(self, number: int) -> None:
        """End a worker, and all that its tasks started, at once.

        In line with `fork`: what is to start behind the server's own start would miss its end.
        """
        self._requests.run(partial(self._kill, number))

    def stop(self) -> None:
        """End the server, and those of its workers that are left."""
        hung_up = threading.Event()

        def hang_up() -> None:
            self._stopped = True
            channel, self._channel = self._channel, None
            if channel is not None:
                channel.close()
            hung_up.set()

        self._requests.run(hang_up)  # behind a start that another thread has begun
        hung_up.wait()
        if self._server is not None:
            try:
                self._server.wait(_PATIENCE)
            except subprocess.TimeoutExpired:  # stopped by a debugger, say; its workers go with it
                self._server.kill()
                self._server.wait()

    def _kill(self, number: int) -> None:
        if self._channel is not None and number in self._children:
            self._channel.send(KillWorker(number))

    def _send(self, message: Message, descriptors: Sequence[int] = (), keep: Any = None) -> None:
        try:
            channel = self._channel or self._start()
        except Exception as error:  # noqa: BLE001 - the system's limit on processes, say
            if isinstance(message, Fork):
                self._loop.call_soon(partial(self._handle, ForkFailed(message.number, str(error)), []))
            return
        channel.send(message, descriptors, keep)

    def _start(self) -> Channel:
        if self._stopped:
            raise ContextClosedError("its context has ended")
        ours, theirs = socket.socketpair()
        with theirs:
            # sys.executable, never `python` by name: that may be a shim of 100 ms, or another Python.
            self._server = subprocess.Popen(
                [
                    sys.executable,
                    *_flags(),
                    "-c",
                    _CODE.format(path=import_path(), descriptor=theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at a terminal is the caller's; it ends its workers itself
            )
        server = self._server
        self.env, self.path = dict(os.environ), import_path()
        self._channel = Channel(self._loop, ours, self._handle, lambda _: self._lost(server))
        self._channel.listen()
        return self._channel

    def _handle(self, message: Message, descriptors: list[int]) -> None:
        self._handlers[type(message)](message)

    def _tell(self, number: int, act: Callable[[Child], None]) -> None:
        child = self._children.get(number)
        if child is not None:
            act(child)

    def _drop(self, number: int, act: Callable[[Child], None]) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            act(child)

    def _preloaded(self, message: Preloaded) -> None:
        self.importing -= 1
        self.fit = self.fit and message.fit

    def _lost(self, server: "subprocess.Popen[bytes]") -> None:
        """The fork server was killed, and its workers with it; the next worker starts another."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        channel.close()
        orphans, self._children = list(self._children.values()), {}
        self.fit = False
        server.kill()  # it may live: a message of it could not be read
        status = server.wait()
        for child in orphans:
            child.ended(status)


def _flags() -> list[str]:
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined, no-any-return]


def import_path() -> list[str]:
    """Return this process's `sys.path` as text: an entry may be a `Path`."""
    return [os.fspath(entry) for entry in sys.path if isinstance(entry, str | os.PathLike)]


def current_directory() -> str:
    """Return where a worker starts: where the caller is now."""
    try:
        return os.getcwd()  # noqa: PTH109 - a str is what travels
    except FileNotFoundError:
        return "/"
