"""The caller's side of the fork server: starts it when the first worker is wanted, hears how workers end."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from fray_local._process.owner.event_loop import Channel, EventLoop

_CODE = (
    "import sys; sys.path[:] = {path!r}; from fray_local._process.fork_server import main; main({descriptor})"
)
_PATIENCE = 10.0


class Child(Protocol):
    """Who wants to know what becomes of a worker."""

    number: int

    def started(self, pid: int) -> None: ...
    def ended(self, status: int) -> None: ...
    def failed(self, reason: str) -> None: ...


class ForkServerClient:
    """Makes workers."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._children: dict[int, Child] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._stopping = False

    def fork(self, child: Child, settings: dict[str, Any], descriptors: Sequence[int], keep: Any) -> None:
        """Let a worker be made, which takes the descriptors."""
        with self._lock:
            channel = self._channel or self._start()
            self._children[child.number] = child
        channel.send(("fork", child.number, settings), descriptors, keep)

    def host(self, settings: dict[str, Any], descriptors: Sequence[int], keep: Any) -> None:
        """Let a detached actor's process be started; nobody here hears of it again."""
        with self._lock:
            channel = self._channel or self._start()
        channel.send(("host", 0, settings), descriptors, keep)

    def kill(self, number: int) -> None:
        """End a worker, and all that its tasks started, at once."""
        with self._lock:
            channel = self._channel if number in self._children else None
        if channel is not None:
            channel.send(("kill", number))

    def stop(self) -> None:
        """End the fork server, and whoever of its workers is left."""
        with self._lock:
            self._stopping = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self._server is not None:
            try:
                self._server.wait(_PATIENCE)
            except subprocess.TimeoutExpired:  # stopped by a debugger, say; its workers go with it
                self._server.kill()
                self._server.wait()

    def _start(self) -> Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            # sys.executable, never `python` by name: that may be a shim of 100 ms, or another Python.
            self._server = subprocess.Popen(
                [sys.executable, *_flags(), "-c", _CODE.format(path=sys.path, descriptor=theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at a terminal is the caller's; it ends its workers itself
            )
        server = self._server
        self._channel = Channel(self._loop, ours, self._handle, lambda _: self._lost(server))
        return self._channel

    def _handle(self, message: tuple[Any, ...], descriptors: list[int]) -> None:
        kind, number, detail = message
        with self._lock:
            child = self._children.get(number)
            if kind != "forked":
                self._children.pop(number, None)
        if child is None:
            return
        if kind == "forked":
            child.started(detail)
        elif kind == "exit":
            child.ended(detail)
        else:
            child.failed(detail)

    def _lost(self, server: "subprocess.Popen[bytes]") -> None:
        """The fork server was killed, and its workers with it; the next worker starts another."""
        with self._lock:
            channel, self._channel = self._channel, None
            orphans, self._children = list(self._children.values()), {}
        if channel is None:
            return
        channel.close()
        status = server.wait(_PATIENCE)
        for child in orphans:
            child.ended(status)


def _flags() -> list[str]:
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined, no-any-return]


def current_directory() -> str:
    """Return where a worker starts: where the caller is now."""
    try:
        return os.getcwd()  # noqa: PTH109 - a str is what travels
    except FileNotFoundError:
        return "/"
