"""What the routes do: a handler reads a request, asks the hub and answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from fray import QueueUnavailableError
from fray.backend import check_seconds
from fray_queue._checks import check_count
from fray_queue._errors import LimitError
from fray_queue._http.protocol.limits import item_too_large
from fray_queue._http.protocol.wire import unpack
from fray_queue._http.server.answers import (
    BadRequestError,
    asset,
    dead_meta,
    ids_of,
    json_answer,
    lease_meta,
    lease_of,
    leases_of,
    place_of,
    records_answer,
    slot_of,
)
from fray_queue._http.server.describe import description, metrics_text, queue_stats
from fray_queue._http.server.dispatch import Handler
from fray_queue._http.server.hub import Hub
from fray_queue._http.server.journal import WriterEndedError
from fray_queue._http.server.routes import CSS, HTML, ROUTES, SCRIPT, TEXT
from fray_queue._http.server.rows import MOST_ATTEMPTS

_LONGEST_ID = 200

Action = Callable[[web.BaseRequest, str], Awaitable[dict[str, Any]]]


class Api:
    """The handlers of one server."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def handlers(self) -> dict[str, dict[str, Handler]]:
        """Return the handler of each route, by method and path."""
        table: dict[str, dict[str, Handler]] = {}
        for route in ROUTES:
            method = getattr(self, f"_{route.handler}")
            handler = self._repeatable(method) if route.changes else method
            table.setdefault(route.method, {})[route.path] = handler
        return table

    # --- requests that change something, each done once ---

    def _repeatable(self, act: Action) -> Handler:
        async def handler(request: web.BaseRequest, name: str) -> web.StreamResponse:
            slot, number = slot_of(request)
            if self._hub.lost:
                raise WriterEndedError
            if slot is None:
                reply = await act(request, name)
                await self._hub.commit()
                return self._answer(reply)
            known = self._hub.slots.recall(slot, number)
            if known is None:
                known = self._hub.slots.remember(slot, number)
                await self._act_once(lambda: act(request, name), slot, number, known)
            return self._answer(known.result() if known.done() else await asyncio.shield(known))

        return handler

    async def _act_once(
        self, act: Callable[[], Awaitable[Any]], slot: str, number: int, answer: "asyncio.Future[Any]"
    ) -> None:
        try:
            reply = await act()
            self._hub.slots.keep(slot, number, reply)
            await self._hub.commit()
        except BaseException as error:
            self._hub.slots.forget(slot, answer)  # it changed nothing, and may be tried again
            if not answer.done():
                answer.set_exception(
                    error if isinstance(error, Exception) else QueueUnavailableError("interrupted")
                )
                answer.exception()  # seen: a repetition may wait for it, or none may come
            raise
        if not answer.done():
            answer.set_result(reply)

    def _answer(self, reply: dict[str, Any]) -> web.Response:
        """Write an answer out; one that leases items names them, and a repetition shows them as they are."""
        if "leases" not in reply:
            return json_answer(reply)
        machine = self._hub.get(reply["queue"]).machine
        held = (machine.held(item_id, lease_id) for item_id, lease_id in reply["leases"])
        entries = [entry for entry in held if entry is not None]
        return records_answer([lease_meta(entry) for entry in entries], entries)

    # --- handlers ---
    # A queue is looked up when the body is there: while it is awaited, another may take its place.

    async def _create(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        body = await self._body(request, "max_attempts")
        limit = body.get("max_attempts")
        if limit is not None and check_count("max_attempts", limit) > MOST_ATTEMPTS:
            raise BadRequestError(f"max_attempts is at most {MOST_ATTEMPTS}, or null for no limit")
        self._hub.create(name, limit)
        return {}

    async def _delete(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        self._hub.delete(name)
        return {}

    async def _push(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        limits = self._hub.limits
        records = unpack(await self._read(request))
        if len(records) > limits.batch:
            raise LimitError(f"a request has at most {limits.batch} items; this one has {len(records)}")
        for meta, payload in records:
            item_id = meta.get("id")
            if (
                not isinstance(item_id, str)
                or not 0 < len(item_id) <= _LONGEST_ID
                or not item_id.isprintable()
            ):
                raise BadRequestError(f"an item's id is 1 to {_LONGEST_ID} printable characters")
            if len(payload) > limits.item_bytes:
                raise LimitError(item_too_large(limits.item_bytes, len(payload)))
        records_of = [(meta["id"], payload) for meta, payload in records]
        return {"stored": self._hub.push(self._hub.get(name), records_of)}

    async def _pop(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        body = await self._body(request, "n", "lease_timeout", "wait")
        queue = self._hub.get(name)
        n = min(check_count("n", body.get("n", 1)), self._hub.limits.batch)
        lease_timeout = check_seconds("lease_timeout", body.get("lease_timeout", 60.0))
        wait = min(check_seconds("wait", body.get("wait", 0.0), zero=True), self._hub.limits.wait_seconds)

        def gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        entries = await self._hub.pop(queue, n, lease_timeout, wait, gone)
        return {"queue": queue.name, "leases": [(entry.item_id, entry.lease_id) for entry in entries]}

    async def _done(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        leases = leases_of(await self._body(request, "leases"))
        return {"refused": self._hub.finish(self._hub.get(name), leases)}

    async def _release(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        body = await self._body(request, "item_id", "lease_id", "delay")
        queue = self._hub.get(name)
        delay = check_seconds("delay", body.get("delay", 0.0), zero=True)
        self._hub.release(queue, *lease_of(body), delay)
        return {}

    async def _extend(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        body = await self._body(request, "item_id", "lease_id", "lease_timeout")
        queue = self._hub.get(name)
        lease_timeout = check_seconds("lease_timeout", body.get("lease_timeout"))
        entry = queue.machine.extend(*lease_of(body), lease_timeout, self._hub.clock())
        return {"expires_at": entry.until}

    async def _requeue(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        item_ids = ids_of(await self._body(request, "item_ids"))
        return {"count": self._hub.requeue(self._hub.get(name), item_ids)}

    async def _purge(self, request: web.BaseRequest, name: str) -> dict[str, Any]:
        body = await self._body(request, "dead", "item_ids")
        dead, item_ids = body.get("dead", False), ids_of(body)
        if not isinstance(dead, bool):
            raise BadRequestError("dead is true or false")
        if item_ids is not None and not dead:
            raise BadRequestError("item_ids are those of dead letters: it needs dead, else all items go")
        machine = self._hub.get(name).machine
        return {"count": machine.purge_dead(item_ids, self._hub.clock()) if dead else machine.purge()}

    async def _peek(self, request: web.BaseRequest, name: str) -> web.Response:
        entry = self._hub.get(name).machine.peek(self._hub.clock())
        return records_answer([{}], [entry]) if entry else records_answer([], [])

    async def _dead(self, request: web.BaseRequest, name: str) -> web.Response:
        entries = self._hub.get(name).machine.dead_letters(self._hub.clock())
        return json_answer({"dead": [dead_meta(entry) for entry in entries]})

    async def _dead_records(self, request: web.BaseRequest, name: str) -> web.Response:
        entries, more = self._hub.dead_page(self._hub.get(name), place_of(request))
        return records_answer(
            [{**dead_meta(entry), "place": entry.seq, "more": more} for entry in entries], entries
        )

    async def _stats(self, request: web.BaseRequest, name: str) -> web.Response:
        stats = queue_stats(self._hub.get(name), self._hub.clock())
        limits = self._hub.limits
        return json_answer({**stats, "item_bytes": limits.item_bytes, "batch": limits.batch})

    async def _list_queues(self, request: web.BaseRequest, name: str) -> web.Response:
        return json_answer({"queues": [queue_stats(queue, self._hub.clock()) for queue in self._hub.each()]})

    async def _healthz(self, request: web.BaseRequest, name: str) -> web.Response:
        if self._hub.lost:
            raise WriterEndedError
        return web.Response(text="ok\n", content_type=TEXT)

    async def _metrics(self, request: web.BaseRequest, name: str) -> web.Response:
        text = metrics_text(self._hub.each(), self._hub.clock())
        return web.Response(
            body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _openapi(self, request: web.BaseRequest, name: str) -> web.Response:
        return json_answer(description())

    async def _page(self, request: web.BaseRequest, name: str) -> web.Response:
        return web.Response(body=asset("page.html"), content_type=HTML)

    async def _page_css(self, request: web.BaseRequest, name: str) -> web.Response:
        return web.Response(body=asset("page.css"), content_type=CSS)

    async def _page_js(self, request: web.BaseRequest, name: str) -> web.Response:
        return web.Response(body=asset("page.js"), content_type=SCRIPT)

    # --- reading ---

    async def _read(self, request: web.BaseRequest) -> bytes:
        limits = self._hub.limits
        try:
            data = await self._arrived(request)
        except web.HTTPRequestEntityTooLarge:
            data = None
        except web.RequestPayloadError:  # compressed, or so it says
            raise BadRequestError("the body cannot be decoded as its headers say") from None
        if data is None or len(data) > limits.body_bytes:
            raise LimitError(
                f"a request has at most {limits.body_bytes} bytes, an item {limits.item_bytes} when pickled"
            )
        return data

    async def _arrived(self, request: web.BaseRequest) -> bytes:
        if request.content.is_eof():  # it came with its head; small, unless it was compressed
            return request.content.read_nowait()
        seconds = self._hub.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                return await request.read()
        except TimeoutError:
            raise TimeoutError(
                f"the body did not arrive within {seconds:g} s, the server's body_seconds (--body-seconds)"
            ) from None

    async def _body(self, request: web.BaseRequest, *fields: str) -> dict[str, Any]:
        data = await self._read(request)
        try:
            body = json.loads(data.decode()) if data else {}
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise BadRequestError("the body is not a JSON object")
        for field in body:
            if field not in fields:
                raise BadRequestError(f"unknown field {field!r}; known: {', '.join(fields)}")
        return body
