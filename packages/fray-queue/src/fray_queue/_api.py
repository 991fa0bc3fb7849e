"""What the routes do. A handler reads a request, asks the hub and answers; `dispatch` is around each."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from fray import FrayError, QueueUnavailableError
from fray._queue import check_seconds
from fray_queue._answers import (
    BadRequestError,
    asset,
    dead_meta,
    error_answer,
    ids_of,
    json_answer,
    lease_meta,
    lease_of,
    leases_of,
    records_answer,
    refusal,
    slot_of,
)
from fray_queue._checks import check_count
from fray_queue._describe import description, metrics_text, queue_stats
from fray_queue._guard import OPEN_PATH, Guard
from fray_queue._hub import Hub
from fray_queue._machine import Entry
from fray_queue._named_queue import NamedQueue
from fray_queue._routes import CSS, HTML, ROUTES, SCRIPT, TEXT, Route
from fray_queue._wire import unpack

_log = logging.getLogger("fray.queue")
_LONGEST_ID = 200
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
}


Action = Callable[[web.Request], Awaitable[dict[str, Any]]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The handlers of one server."""

    def __init__(self, hub: Hub, guard: Guard) -> None:
        self._hub, self._guard = hub, guard

    def application(self) -> web.Application:
        """Return the routes behind the guard."""
        app = web.Application(middlewares=[self._around], client_max_size=self._hub.limits.body_bytes)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._handler(route))
        return app

    def _handler(self, route: Route) -> Handler:
        method = getattr(self, f"_{route.handler}")
        return self._repeatable(method) if route.changes else method

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            refused = None if request.path == OPEN_PATH else self._guard.refuse(request)
            response = await handler(request) if refused is None else refused
        except web.HTTPException as error:
            response = refusal(error.status, "http", error.reason)
        except (FrayError, ValueError, TimeoutError) as error:
            response = error_answer(error)
        except ConnectionError:  # the client went away before it had said everything
            response = refusal(400, "bad_request", "the body did not arrive")
        except Exception:  # noqa: BLE001 - a client is told that it failed, not how
            _log.exception("%s %s failed", request.method, request.path)
            response = refusal(500, "internal", "the server failed; its log says why")
        if request.method == "GET":  # what a browser shows; a client's own calls are spared their parsing
            response.headers.update(_HEADERS)
        return response

    # --- requests that change something, each done once ---

    def _repeatable(self, act: Action) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            slot, number = slot_of(request)
            if slot is None:
                reply = await act(request)
                await self._hub.commit()
                return self._answer(reply)
            known = self._hub.recall(slot, number)
            if known is None:
                known = self._hub.remember(slot, number)
                await self._act_once(request, act, slot, number, known)
            return self._answer(await asyncio.shield(known))

        return handler

    async def _act_once(
        self, request: web.Request, act: Action, slot: str, number: int, answer: "asyncio.Future[Any]"
    ) -> None:
        try:
            reply = await act(request)
            self._hub.journal_answer(slot, number, reply)
            await self._hub.commit()
        except BaseException as error:
            self._hub.forget(slot, answer)  # it changed nothing, and may be tried again
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

    async def _create(self, request: web.Request) -> dict[str, Any]:
        body = await self._body(request, "max_attempts")
        if body.get("max_attempts") is not None:
            check_count("max_attempts", body["max_attempts"])
        self._hub.create(request.match_info["name"], body.get("max_attempts"))
        return {}

    async def _delete(self, request: web.Request) -> dict[str, Any]:
        self._hub.delete(request.match_info["name"])
        return {}

    async def _push(self, request: web.Request) -> dict[str, Any]:
        queue = self._queue(request)
        limits = self._hub.limits
        records = unpack(await self._read(request))
        if len(records) > limits.batch:
            raise web.HTTPRequestEntityTooLarge(limits.batch, len(records))
        for meta, payload in records:
            item_id = meta.get("id")
            if (
                not isinstance(item_id, str)
                or not 0 < len(item_id) <= _LONGEST_ID
                or not item_id.isprintable()
            ):
                raise BadRequestError(f"an item's id is 1 to {_LONGEST_ID} printable characters")
            if len(payload) > limits.item_bytes:
                raise web.HTTPRequestEntityTooLarge(limits.item_bytes, len(payload))
        return {"stored": self._hub.push(queue, [(meta["id"], payload) for meta, payload in records])}

    async def _pop(self, request: web.Request) -> dict[str, Any]:
        queue = self._queue(request)
        body = await self._body(request, "n", "lease_timeout", "wait")
        n = min(check_count("n", body.get("n", 1)), self._hub.limits.batch)
        lease_timeout = check_seconds("lease_timeout", body.get("lease_timeout", 60.0))
        wait = min(check_seconds("wait", body.get("wait", 0.0), zero=True), self._hub.limits.wait_seconds)

        def gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        entries = await self._hub.pop(queue, n, lease_timeout, wait, gone)
        return {"queue": queue.name, "leases": [(entry.item_id, entry.lease_id) for entry in entries]}

    async def _done(self, request: web.Request) -> dict[str, Any]:
        queue = self._queue(request)
        return {"refused": self._hub.finish(queue, leases_of(await self._body(request, "leases")))}

    async def _release(self, request: web.Request) -> dict[str, Any]:
        queue = self._queue(request)
        body = await self._body(request, "item_id", "lease_id", "delay")
        delay = check_seconds("delay", body.get("delay", 0.0), zero=True)
        self._hub.release(queue, *lease_of(body), delay)
        return {}

    async def _extend(self, request: web.Request) -> dict[str, Any]:
        queue = self._queue(request)
        body = await self._body(request, "item_id", "lease_id", "lease_timeout")
        lease_timeout = check_seconds("lease_timeout", body.get("lease_timeout"))  # type: ignore[arg-type]
        entry = queue.machine.extend(*lease_of(body), lease_timeout, self._hub.clock())
        return {"expires_at": entry.until}

    async def _requeue(self, request: web.Request) -> dict[str, Any]:
        queue = self._queue(request)
        return {"count": self._hub.requeue(queue, ids_of(await self._body(request, "item_ids")))}

    async def _purge(self, request: web.Request) -> dict[str, Any]:
        queue = self._queue(request)
        body = await self._body(request, "dead", "item_ids")
        if body.get("dead"):
            return {"count": queue.machine.purge_dead(ids_of(body), self._hub.clock())}
        return {"count": queue.machine.purge()}

    async def _peek(self, request: web.Request) -> web.Response:
        entry = self._queue(request).machine.peek(self._hub.clock())
        return records_answer([{}], [entry]) if entry else records_answer([], [])

    async def _dead(self, request: web.Request) -> web.Response:
        return json_answer({"dead": [dead_meta(entry) for entry in self._dead_entries(request)]})

    async def _dead_records(self, request: web.Request) -> web.Response:
        entries = self._dead_entries(request)
        return records_answer([dead_meta(entry) for entry in entries], entries)

    async def _stats(self, request: web.Request) -> web.Response:
        return json_answer(queue_stats(self._queue(request), self._hub.clock()))

    async def _list_queues(self, request: web.Request) -> web.Response:
        return json_answer({"queues": [queue_stats(queue, self._hub.clock()) for queue in self._hub.each()]})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n", content_type=TEXT)

    async def _metrics(self, request: web.Request) -> web.Response:
        text = metrics_text(self._hub.each(), self._hub.clock())
        return web.Response(
            body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _openapi(self, request: web.Request) -> web.Response:
        return json_answer(description())

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(body=asset("page.html"), content_type=HTML)

    async def _page_css(self, request: web.Request) -> web.Response:
        return web.Response(body=asset("page.css"), content_type=CSS)

    async def _page_js(self, request: web.Request) -> web.Response:
        return web.Response(body=asset("page.js"), content_type=SCRIPT)

    # --- reading ---

    def _queue(self, request: web.Request) -> NamedQueue:
        return self._hub.get(request.match_info["name"])

    def _dead_entries(self, request: web.Request) -> list[Entry[bytes]]:
        return self._queue(request).machine.dead_letters(self._hub.clock())

    async def _read(self, request: web.Request) -> bytes:
        async with asyncio.timeout(self._hub.limits.body_seconds):
            return await request.read()

    async def _body(self, request: web.Request, *fields: str) -> dict[str, Any]:
        data = await self._read(request)
        with contextlib.suppress(UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            body = json.loads(data) if data else {}
            if isinstance(body, dict):
                if strangers := body.keys() - set(fields):
                    raise BadRequestError(f"unknown field {min(strangers)!r}; known: {', '.join(fields)}")
                return body
        raise BadRequestError("the body is not a JSON object")
