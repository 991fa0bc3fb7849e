"""What `fray ui` answers about queues: it sends requests and operations on to their servers."""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from aiohttp import web

from fray._ui import queue_page
from fray._ui.answers import part_answer
from fray._ui.bodies import json_object
from fray._ui.listing import Query, WrongQueryError
from fray._ui.markup import Html
from fray._ui.request_check import refusal
from fray._ui.shared_calls import Looked, SharedCalls

_NAME = re.compile(r"[^/\x00-\x1f]{1,300}")
_VERBS = {"requeue": {"item_ids"}, "purge": {"dead", "item_ids"}}
_AT_ONCE = 0.25


class QueueServer(Protocol):
    """A server of queues, as its client knows it."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a request and return what it answers; may block, and raise."""
        ...


class QueueRoutes:
    """The handlers that are about queues.

    Args:
        servers: By the names that the page gives them.
        around: Returns what documents have beside their content, for the address that is shown.
    """

    def __init__(
        self, servers: Mapping[str, QueueServer], around: Callable[[Query, str], dict[str, Any]]
    ) -> None:
        self._servers = {name: (each, SharedCalls(f"fray-ui-{name}")) for name, each in servers.items()}
        self._around = around

    def routes(self) -> list[web.RouteDef]:
        """Return what answers each address."""
        if not self._servers:
            return []
        return [
            web.get("/queues", self._queues_page),
            web.get("/queue", self._queue_page),
            web.get("/part/queues", partial(self._part, self._queues)),
            web.get("/part/queue", partial(self._part, self._queue)),
            web.get("/part/letters", partial(self._part, self._letters)),
            *(
                web.post(f"/servers/{{server}}/queues/{{name}}/{verb}", partial(self._act, verb))
                for verb in _VERBS
            ),
        ]

    def close(self) -> None:
        """Stop all requests."""
        for _, calls in self._servers.values():
            calls.close()

    # --- pages ---

    async def _queues_page(self, request: web.Request) -> web.StreamResponse:
        query = Query(request.query)
        html = await self._queues(query, _AT_ONCE)
        first = None if 'data-state="loading"' in html else html
        written = queue_page.queues_document(query, first, **self._around(query, "queues"))
        return web.Response(text=written, content_type="text/html")

    async def _queue_page(self, request: web.Request) -> web.StreamResponse:
        query = Query(request.query)
        self._server(query)
        _name_of(query)
        written = queue_page.queue_document(query, above="queues", **self._around(query, ""))
        return web.Response(text=written, content_type="text/html")

    async def _part(
        self, part: Callable[[Query, float], Awaitable[Html]], request: web.Request
    ) -> web.StreamResponse:
        return part_answer(await part(Query(request.query), 5.0), request)

    async def _queues(self, query: Query, patience: float) -> Html:
        asked = {
            "q": query.text("q"),
            "only": query.choice("only", queue_page.KINDS),
            "sort": query.choice("sort", queue_page.SORTS),
            "page": str(query.number("page")),
        }
        looked = await self._ask(query, f"/queues?limit={queue_page.PER_PAGE}&{urlencode(asked)}", patience)
        return queue_page.queues_part(looked, query)

    async def _queue(self, query: Query, patience: float) -> Html:
        looked = await self._ask(query, f"/queues/{_name_of(query)}", patience)
        return queue_page.queue_part(looked)

    async def _letters(self, query: Query, patience: float) -> Html:
        after = query.number("after", most=10**15)
        path = f"/queues/{_name_of(query)}/dead?limit={queue_page.PER_PAGE}&after={after}"
        looked = await self._ask(query, path, patience)
        server = quote(query.text("server") or next(iter(self._servers)), safe="")
        return queue_page.letters_part(looked, query, f"servers/{server}/")

    # --- requests to servers ---

    def _server(self, query: Query) -> tuple[QueueServer, SharedCalls]:
        name = query.text("server")
        if not name:
            return next(iter(self._servers.values()))
        if name not in self._servers:
            raise WrongQueryError(f"no server of this page is called {name[:100]!r}")
        return self._servers[name]

    async def _ask(self, query: Query, path: str, patience: float) -> Looked[dict[str, Any]]:
        server, calls = self._server(query)
        return await calls.get(path, lambda: server.ask("GET", path), patience=patience)

    async def _act(self, verb: str, request: web.Request) -> web.StreamResponse:
        server, calls = self._server(Query({"server": request.match_info["server"]}))
        path = f"/queues/{_name_of(Query({'name': request.match_info['name']}))}/{verb}"
        body = await _letters_of(verb, request)
        try:
            told = await calls.run(lambda: server.ask("POST", path, body))
        except Exception as error:  # noqa: BLE001 - the answer says what it is
            return refusal(409, f"{type(error).__name__}: {error}")
        return web.json_response(told)


async def _letters_of(verb: str, request: web.Request) -> dict[str, Any]:
    """Return a body that is about dead letters and nothing else.

    Raises:
        WrongQueryError: It is not.
    """
    body = await json_object(request)
    if body is None or set(body) != _VERBS[verb] or body.get("dead", True) is not True:
        raise WrongQueryError(
            f"the body is an object of {', '.join(sorted(_VERBS[verb]))}, about dead letters"
        )
    ids = body["item_ids"]
    if ids is not None and not (isinstance(ids, list) and all(isinstance(each, str) for each in ids)):
        raise WrongQueryError("item_ids is a list of ids, or null for all")
    return body


def _name_of(query: Query) -> str:
    name = query.text("name")
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise WrongQueryError("the address has no name of a queue: queue?name=…")
    return quote(name, safe="")
