"""The server's own pages: they show what the routes for programs answer, in the look of `fray ui`."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from fray.backend import part_answer, queue_page
from fray_queue._http.server.routes import HTML

Told = dict[str, Any]


class Pages:
    """The handlers that answer with HTML.

    Args:
        listed: Returns the queues of a page.
        told: Returns the counts and rates of one.
        letters: Returns dead letters of one, behind a place in line.
    """

    def __init__(
        self,
        listed: Callable[[queue_page.Query], Awaitable[Told]],
        told: Callable[[str], Awaitable[Told]],
        letters: Callable[[str, int, int | None], Awaitable[Told]],
    ) -> None:
        self._listed, self._told, self._letters = listed, told, letters

    async def page(self, request: web.BaseRequest, _: str) -> web.Response:
        """Answer with all queues."""
        query = queue_page.Query(request.query)
        first = queue_page.queues_part(_known(await self._listed(query)), query)
        return web.Response(text=queue_page.queues_document(query, first), content_type=HTML)

    async def queue_page(self, request: web.BaseRequest, _: str) -> web.Response:
        """Answer with the page of a queue; its parts say whether there is one."""
        return web.Response(
            text=queue_page.queue_document(queue_page.Query(request.query)), content_type=HTML
        )

    async def queues_part(self, request: web.BaseRequest, _: str) -> web.Response:
        """Answer with what the page lists."""
        query = queue_page.Query(request.query)
        return part_answer(queue_page.queues_part(_known(await self._listed(query)), query), request)

    async def queue_part(self, request: web.BaseRequest, _: str) -> web.Response:
        """Answer with the counts of a queue."""
        name = queue_page.Query(request.query).text("name")
        return part_answer(queue_page.queue_part(_known(await self._told(name))), request)

    async def letters_part(self, request: web.BaseRequest, _: str) -> web.Response:
        """Answer with its dead letters."""
        query = queue_page.Query(request.query)
        after = query.number("after", most=10**15)
        told = await self._letters(query.text("name"), after, queue_page.PER_PAGE)
        return part_answer(queue_page.letters_part(_known(told), query), request)

    async def page_css(self, _request: web.BaseRequest, _: str) -> web.Response:
        """Answer with the style."""
        return _file("page.css")

    async def page_js(self, _request: web.BaseRequest, _: str) -> web.Response:
        """Answer with the script."""
        return _file("page.js")

    async def icon_svg(self, _request: web.BaseRequest, _: str) -> web.Response:
        """Answer with the icon."""
        return _file("icon.svg")


def _file(name: str) -> web.Response:
    return web.Response(body=queue_page.asset(name), content_type=queue_page.ASSETS[name], charset="utf-8")


def _known(told: Told) -> queue_page.Looked[Told]:
    return queue_page.Looked(told, time.time())
