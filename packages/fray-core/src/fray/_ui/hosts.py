"""Which requests a server answers: those that name it as it is called, and come from no other page."""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
_MOST_KNOWN = 100


class HostCheck:
    """Distinguishes the server's own names from those of others.

    A page that rebinds a name of its own to this machine sends that name as Host; it cannot send these.

    Args:
        host: What the server listens on.
        allowed: Names by which clients reach it, beside its own.
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in allowed} | {host.lower()} | _LOOPBACK_NAMES
        if not is_loopback(host):
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._known: set[str] = set()  # headers that were checked: a client sends the same each time

    @property
    def kept(self) -> int:
        """How many headers are remembered; a bound keeps clients without a token from filling the memory."""
        return len(self._known)

    def is_own(self, header: str, address: Callable[[], str | None]) -> bool:
        """Whether a Host header names this server.

        Args:
            address: Returns the one that the client connected to, which is a name of it too.
        """
        if header in self._known:
            return True
        parts = _HOST.fullmatch(header)
        if parts is None:
            return False
        name = parts[1].strip("[]").lower()
        if name not in self._names and not _same_address(name, address()):
            return False
        if len(self._known) >= _MOST_KNOWN:  # it is kept before a token is known
            self._known.clear()
        self._known.add(header)
        return True


def is_same_origin(origin: str | None, host: str) -> bool:
    """Whether a request was made by this server's own page, or by none.

    An Origin is scheme://host[:port] and no more, so it needs no parser that could refuse it.
    """
    return origin is None or origin.lower().partition("://")[2] == host.lower()


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _same_address(name: str, address: str | None) -> bool:
    return (
        address is not None
        and _is_address(name)
        and ipaddress.ip_address(name) == ipaddress.ip_address(address.partition("%")[0])
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
