"""What is refused by its headers: a foreign Host or Origin, and what its token does not allow."""

import ipaddress
import re
import socket
from collections.abc import Iterable

from aiohttp import web

from fray_queue._http.server.answers import refusal
from fray_queue._http.server.auth import Auth, Grant

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

    def __init__(self, host: str, auth: Auth, allowed_hosts: Iterable[str]) -> None:
        self._auth = auth
        # A page that rebinds its own name sends that name; it cannot send these, so they are always good.
        self._names = {name.lower() for name in allowed_hosts} | {host.lower()} | _LOOPBACK_NAMES
        if not is_loopback(host):
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._good_hosts: set[str] = set()  # headers that were checked: a client sends the same each time

    def check(self, request: web.BaseRequest, path: str, name: str) -> Grant | web.Response:
        """Return what the request's token allows, or the answer to a request that may go no further.

        Args:
            path: With `{name}` in the place of the queue's name.
        """
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
        # An Origin is scheme://host[:port] and no more, so it needs no parser that could refuse it.
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            return refusal(403, "foreign", "foreign Origin")
        grant = self._auth.grant(headers.get("Authorization", ""))
        if grant is None:
            answer = refusal(401, "token", "the server wants its token, and this is none or another")
            # Basic besides Bearer: so a browser asks for the token by itself, and keeps it out of the page.
            answer.headers["WWW-Authenticate"] = 'Basic realm="fray queues: the token is the password"'
            return answer
        if not grant.allows(request.method, path, name):
            return refusal(403, "role", f"the token does not allow this; it is for {grant}")
        return grant

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
