"""Ports of this host that programs of a job may listen on; no two jobs are given the same at one time."""

import os
import random
import socket
import sys
from collections.abc import Iterator

from fray._jobs.processes.file_lock import release_lock, try_lock

# Below the range that systems take the ports of outgoing connections from (Linux 32768, macOS 49152): a
# program that connects before its peer listens could else be given that very port, and talk to itself.
_PORTS = range(20000, 32000)


class HeldPorts:
    """Ports that no other job of this host is given until `close`, or until this process has ended.

    The port itself is left alone: a program may listen on it at any time. What is held is a name that the
    kernel gives to one process only: of a socket where it has names for those (Linux), else of a locked file.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, socket.socket | int] = {}

    def take(self, count: int) -> list[int]:
        """Return so many further ports on which nobody listens now.

        Raises:
            OSError: There are not as many.
        """
        found: list[int] = []
        for port in _shuffled():
            if len(found) == count:
                return found
            token = _token(port)
            if token is None:
                continue
            if _free(port):
                self._tokens[port] = token
                found.append(port)
            else:
                _drop(token)
        raise _too_few(count)

    def again(self, port: int) -> int:
        """Return a port that is held already, or another in its place where a program listens on it."""
        if _free(port, reuse=True):
            return port
        _drop(self._tokens.pop(port))
        return self.take(1)[0]

    def close(self) -> None:
        """Let others have them."""
        while self._tokens:
            _drop(self._tokens.popitem()[1])


def free_ports(count: int) -> list[int]:
    """Return different ports on which nobody listens now, and which no job is given now."""
    held = HeldPorts()
    try:
        return held.take(count)
    finally:
        held.close()


def _shuffled() -> Iterator[int]:
    # A fork has the same state of `random` as its parent; two jobs must not look in the same order.
    yield from random.Random(os.urandom(8)).sample(_PORTS, len(_PORTS))  # noqa: S311 - not secret


def port_is_free(port: int) -> bool:
    """Whether nobody has a port of this host."""
    return _free(port)


def _free(port: int, *, reuse: bool = False) -> bool:
    """Whether nobody has the port; with `reuse`, whether nobody listens, as most servers ask."""
    with socket.socket() as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _token(port: int) -> "socket.socket | int | None":
    """Take the name of a port; None where another process has it."""
    if sys.platform != "linux":
        return _locked_file(port)
    token = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        token.bind(f"\0fray-port-{port}")
    except OSError:
        token.close()
        return None
    return token


def _locked_file(port: int) -> int | None:
    try:
        return try_lock(f"/tmp/fray-port-{port}")  # noqa: S108
    except OSError:  # of another user
        return None


def _drop(token: "socket.socket | int") -> None:
    if isinstance(token, int):
        release_lock(token)
    else:
        token.close()


def _too_few(count: int) -> OSError:
    return OSError(f"no {count} of the ports {_PORTS.start} to {_PORTS.stop - 1} of this host are free")
