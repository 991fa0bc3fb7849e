"""What is refused by its headers: a foreign Host or Origin, and what its token does not allow."""

from collections.abc import Iterable

from aiohttp import web

from fray.backend import HostCheck, is_same_origin
from fray_queue._http.server.answers import refusal
from fray_queue._http.server.auth import Auth, Grant

_LONGEST_SHOWN = 200
OPEN_PATH = "/healthz"  # reveals nothing, and answers load balancers, which know neither name nor token


class RequestCheck:
    """Refuses requests by their headers.

    Args:
        host: What the server listens on.
        allowed_hosts: Names by which clients reach it, beside its own.
    """

    def __init__(self, host: str, auth: Auth, allowed_hosts: Iterable[str]) -> None:
        self._auth, self._hosts = auth, HostCheck(host, allowed_hosts)

    def check(self, request: web.BaseRequest, path: str, name: str) -> Grant | web.Response:
        """Return what the request's token allows, or the answer to a request that may go no further.

        Args:
            path: With `{name}` in the place of the queue's name.
        """
        headers = request.headers
        host = headers.get("Host", "")
        if not self._hosts.is_own(host, lambda: _own_address(request)):
            return refusal(
                403,
                "foreign",
                f"the server does not answer to the Host {host[:_LONGEST_SHOWN]!r}; start it with that "
                "name as an allowed host (--allow-host), or use one of its own",
            )
        if not is_same_origin(headers.get("Origin"), host):
            return refusal(403, "foreign", "foreign Origin")
        grant = self._auth.grant(headers.get("Authorization", ""))
        if grant is None:
            answer = refusal(401, "token", "the server wants its token, and this is none or another")
            # Basic besides Bearer: so a browser requests the token by itself, and keeps it out of the page.
            answer.headers["WWW-Authenticate"] = 'Basic realm="fray queues: the token is the password"'
            return answer
        if not grant.allows(request.method, path, name):
            return refusal(403, "role", f"the token does not allow this; it is for {grant}")
        return grant


def _own_address(request: web.BaseRequest) -> str | None:
    """Return the address that the client connected to."""
    own = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return None if own is None else str(own[0])
