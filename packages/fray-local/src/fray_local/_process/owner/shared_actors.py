"""Actors that another process owns: reached through a socket, found by name."""

import socket

from fray_local._process.owner.event_loop import Channel, EventLoop
from fray_local._process.owner.worker_connection import WorkerConnection, WorkerOwner
from fray_local._process.protocol.messages import Die
from fray_local._process.protocol.values import Budget
from fray_local._process.protocol.wire import describe_failure, encode

# Proxy, because a holder of only a name cannot know how the process ended.
_GONE = "is gone"


class SharedActorConnection(WorkerConnection):
    """A connection to an actor's process whose end this one notices by the connection alone."""

    def __init__(
        self, loop: EventLoop, sock: socket.socket, owner: WorkerOwner, budget: Budget, concurrency: int
    ) -> None:
        super().__init__(owner, budget, concurrency)
        self.channel = Channel(loop, sock, self._handle, self._lost)
        self.channel.listen()

    def _lost(self, error: Exception) -> None:
        self.gone(_GONE if isinstance(error, EOFError) else f"is lost: {describe_failure(error)}", 0)

    def retire(self) -> None:
        """Hang up: the actor lives on without this caller."""
        self.channel.hang_up(lambda: self.gone("was left", 0))

    def kill(self) -> None:
        """Request the end of the process, now."""
        self.channel.send(Die())


def kill(sock: socket.socket, timeout: float) -> bool:
    """End the actor at the other end of a connection; return whether it has ended within so many seconds."""
    with sock:
        sock.settimeout(timeout)
        try:
            sock.sendall(encode(Die()))
            while sock.recv(1 << 16):
                pass
        except TimeoutError:  # it is stopped, or the machine is that busy
            return False
        except ConnectionError:
            return True
    return True
