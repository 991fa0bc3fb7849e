"""Which requests are answered: those with the token, under this server's own name, from its own page."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from fray._ui.hosts import HostCheck, is_same_origin
from fray._ui.listing import WrongQueryError
from fray._ui.markup import tag
from fray._ui.shell import ASSETS, HEADERS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OPEN = {"/healthz"}  # reveals nothing
_ASSETS = {f"/{name}" for name in ASSETS}  # the page that says what is missing needs its style
_JSON = "application/json"
_LONGEST_SHOWN = 100


class RequestCheck:
    """Refuses requests by their headers, before anything is done for them.

    The link that the server prints has the token; the answer to it is a cookie, which no script can read, and
    the same page without the token in its address.
    """

    def __init__(self, hosts: HostCheck, token: str) -> None:
        self._hosts, self._digest = hosts, _digest(token)
        self._token = token
        self.cookie = ""
        """Its name, with the port: cookies are of a host, whatever the port."""

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request that is good, and refuse any other."""
        try:
            response = self._refusal(request) or await handler(request)
        except web.HTTPException as error:
            response = refusal(error.status, error.reason)
        except WrongQueryError as error:
            response = refusal(400, str(error))
        response.headers.update(HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.StreamResponse | None:
        headers = request.headers
        host = headers.get("Host", "")
        if not self._hosts.is_own(host, lambda: _own_address(request)):
            return refusal(
                403,
                f"the server does not answer to the Host {host[:_LONGEST_SHOWN]!r}; start it with that "
                "name as an allowed host (--allow-host), or use one of its own",
            )
        if not is_same_origin(headers.get("Origin"), host):
            return refusal(403, "foreign Origin")
        if request.path in _OPEN or request.path in _ASSETS:
            return None
        given = request.query.get("token")
        if given is not None and request.method == "GET":
            return self._enter(request) if self._is_good(given) else _no_token()
        if not self._has_token(request):
            return _no_token()
        if request.method == "POST":
            # A form of another page can send neither this type nor this Origin.
            site = headers.get("Sec-Fetch-Site", "same-origin")
            if request.content_type != _JSON or site != "same-origin":
                return refusal(403, f"what changes something is {_JSON}, sent by the page itself")
        return None

    def _enter(self, request: web.Request) -> web.StreamResponse:
        """Keep the token out of the address, and the history."""
        response = web.Response(status=303, headers={"Location": _relative(request)})
        response.set_cookie(self.cookie, self._token, httponly=True, samesite="Lax", path="/")
        return response

    def _has_token(self, request: web.Request) -> bool:
        given = request.cookies.get(self.cookie) or _token_in(request.headers.get("Authorization", ""))
        return given is not None and self._is_good(given)

    def _is_good(self, given: str) -> bool:
        return hmac.compare_digest(_digest(given), self._digest)


def refusal(status: int, message: str) -> web.Response:
    """Answer with an error: JSON, as the script reads it."""
    return web.json_response({"error": message}, status=status)


def _no_token() -> web.Response:
    words = "This page wants its token: open the link that ", tag("code", "fray ui"), " printed."
    style = tag("link", rel="stylesheet", href="page.css")
    body = tag("main", tag("p", *words, class_="failure"))
    page = (
        f"<!doctype html>\n<html lang=en><head><title>Fray</title>{style}</head><body>{body}</body></html>\n"
    )
    return web.Response(status=401, text=page, content_type="text/html")


def _relative(request: web.Request) -> str:
    """Return the same address without the token, relative: what stands before it is a proxy's business."""
    leaf = request.rel_url.raw_path.rpartition("/")[2]  # decoded it could end the header
    query = request.rel_url.query.copy()
    query.popall("token")
    rest = request.rel_url.with_query(query).raw_query_string
    return f"./{leaf}" + (f"?{rest}" if rest else "")


def _token_in(header: str) -> str | None:
    scheme, _, credentials = header.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2].decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def _digest(token: str) -> bytes:
    # How long a comparison takes reveals nothing of a digest.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _own_address(request: web.Request) -> str | None:
    own = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return own[0] if own is not None else None
