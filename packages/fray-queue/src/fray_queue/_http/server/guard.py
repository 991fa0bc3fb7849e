"""Who may speak to a server: Host and Origin of every request, and the token."""

import base64
import binascii
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

from fray_queue._http.server.answers import refusal

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_MOST_GOOD_HOSTS = 100
_LONGEST_SHOWN = 200
_LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
OPEN_PATH = "/healthz"  # tells nothing, and answers load balancers, which know neither name nor token


class Guard:
    """Refuses requests by their headers.

    Args:
        host: What the server listens on.
        allowed_hosts: Names by which clients reach it, beside its own.
    """

    def __init__(self, host: str, token: str | None, allowed_hosts: Iterable[str]) -> None:
        self._token = None if token is None else token.encode()
        # A page that rebinds its own name sends that name; it cannot send these, so they are always good.
        self._names = {name.lower() for name in allowed_hosts} | {host.lower()} | _LOOPBACK_NAMES
        if not is_loopback(host):
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._good_hosts: set[str] = set()  # headers that were checked: a client sends the same each time

    def refuse(self, request: web.BaseRequest) -> web.Response | None:
        """Return the answer to a request that may go no further."""
        headers = request.headers
        host = headers.get("Host", "")
        if host not in self._good_hosts:
            if not self._is_own(host, request):
                return refusal(
                    403,
                    "foreign",
                    f"the server does not answer to the Host {host[:_LONGEST_SHOWN]!r}; start it with that "
                    "name as an allowed host (--allow-host), or use one of its own",
                )
            if len(self._good_hosts) >= _MOST_GOOD_HOSTS:  # it is kept before the token is known
                self._good_hosts.clear()
            self._good_hosts.add(host)
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return refusal(403, "foreign", "foreign Origin")
        if self._token is not None and not self._knows_token(headers.get("Authorization", "")):
            answer = refusal(401, "token", "the server wants its token, and this is none or another")
            # Basic besides Bearer: so a browser asks for the token by itself, and keeps it out of the page.
            answer.headers["WWW-Authenticate"] = 'Basic realm="fray queues: the token is the password"'
            return answer
        return None

    def _is_own(self, host: str, request: web.BaseRequest) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = parts[1].strip("[]").lower()
        if name in self._names:
            return True
        # The address that the client connected to. A page that rebinds a foreign name cannot send it as Host.
        transport = request.transport
        own = transport.get_extra_info("sockname") if transport is not None else None
        return (
            own is not None
            and _is_address(name)
            and ipaddress.ip_address(name) == ipaddress.ip_address(own[0].partition("%")[0])
        )

    def _knows_token(self, header: str) -> bool:
        assert self._token is not None
        scheme, _, credentials = header.partition(" ")
        given = credentials.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given, self._token)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
