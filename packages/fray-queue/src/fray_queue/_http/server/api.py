"""What the routes do: a handler reads a request, calls the registry and answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from fray import QueueUnavailableError
from fray.backend import check_count, check_seconds, queue_page
from fray_queue._errors import LimitError
from fray_queue._http.protocol.limits import PROTOCOL, item_too_large
from fray_queue._http.protocol.wire import unpack
from fray_queue._http.server.answers import (
    PROTOCOL_HEADER,
    BadRequestError,
    body_answer,
    dead_meta,
    failure_of,
    ids_of,
    json_answer,
    lease_meta,
    lease_of,
    leases_of,
    limit_of,
    options_of,
    outcomes_of,
    parsed_slot,
    place_of,
    records_answer,
    slot_of,
)
from fray_queue._http.server.bodies import Bodies
from fray_queue._http.server.dispatch import Handler
from fray_queue._http.server.pages import Pages
from fray_queue._http.server.registry import QueueRegistry
from fray_queue._http.server.routes import ROUTES, TEXT
from fray_queue._http.server.stats import metrics_text, with_rates
from fray_queue._http.server.store import Failure, Key, leases_told
from fray_queue._items import MOST_ATTEMPTS, Settings, Taken

_LONGEST_ID = 200
_decode = json.JSONDecoder().decode  # `json.loads` looks for other encodings at each call

Action = Callable[[web.BaseRequest, bytes, str, Key | None], Awaitable[dict[str, Any]]]
"""Is called with a request, its body, the queue's name and the request's key."""


class Api:
    """The handlers of one server."""

    def __init__(self, registry: QueueRegistry) -> None:
        self._registry = registry
        self._bodies = Bodies(registry.limits.body_bytes)

    def handlers(self) -> dict[str, dict[str, Handler]]:
        """Return the handler of each route, by method and path."""
        table: dict[str, dict[str, Handler]] = {}
        pages = Pages(self._listed, self._told, self._letters)
        for route in ROUTES:
            method = getattr(self, f"_{route.handler}", None) or getattr(pages, route.handler)
            handler = self._repeatable(method) if route.changes else method
            table.setdefault(route.method, {})[route.path] = handler
        return table

    # --- requests that change something, each done once ---

    def _repeatable(self, act: Action) -> Handler:
        async def handler(request: web.BaseRequest, name: str) -> web.StreamResponse:
            slot, number = slot_of(request)
            self._registry.store.check()
            # Before the request counts as begun: a repetition does not wait for a body that was cut off.
            body, held = await self._hold(request)
            try:
                if slot is None:
                    return await self._answer(await act(request, body, name, None), None)
                return await self._once(act, request, body, name, Key(slot, number))
            finally:
                self._bodies.give_back(held)

        return handler

    async def _once(
        self, act: Action, request: web.BaseRequest, body: bytes, name: str, key: Key
    ) -> web.Response:
        requests = self._registry.requests
        known = requests.recall(*key)
        if known is not None:
            told = known.result() if known.done() else await asyncio.shield(known)
            return await self._answer(told, key)
        answer = requests.remember(*key)
        try:
            reply = await act(request, body, name, key)
        except BaseException as error:
            # It changed nothing, and may be tried again; or the writer ended, and nothing is tried here.
            requests.forget(key.slot, answer)
            _fail(answer, error)
            raise
        taken = reply.pop("taken", None)  # no payloads for a repetition: they would stay in memory
        if not answer.done():
            answer.set_result(reply)
        return json_answer(reply) if taken is None else records_answer(map(lease_meta, taken), taken)

    async def _answer(self, reply: dict[str, Any], key: Key | None) -> web.Response:
        """Write an answer out; one that leases items names them, and a repetition shows them as they are."""
        if "leases" not in reply:
            return json_answer(reply)
        taken: list[Taken] | None = reply.get("taken")
        if taken is None:
            taken = await self._registry.store.held(reply["queue"], reply["leases"], key)
        return records_answer(map(lease_meta, taken), taken)

    # --- handlers ---
    # A queue is looked up when the body is there: while it is awaited, another may take its place.

    async def _create(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        names = ("max_attempts", "max_size", "max_dead")
        body = self._body(data, *names)
        for each in names:
            if body.get(each) is not None and check_count(each, body[each], 1) > MOST_ATTEMPTS:
                raise BadRequestError(f"{each} is at most {MOST_ATTEMPTS}, or null for no limit")
        await self._registry.create(name, Settings(**body), key)
        return {}

    async def _delete(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        await self._registry.delete(name, key)
        return {}

    async def _push(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        records = self._sent(data)
        for meta, _ in records:
            item_id = meta.get("id")
            if (
                not isinstance(item_id, str)
                or not 0 < len(item_id) <= _LONGEST_ID
                or not item_id.isprintable()
            ):
                raise BadRequestError(f"an item's id is 1 to {_LONGEST_ID} printable characters")
        return await self._registry.push(name, [(meta["id"], payload) for meta, payload in records], key)

    async def _submit(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        records = self._sent(data)
        payloads = [payload for _, payload in records]
        return await self._registry.submit(name, payloads, options_of(records), key)

    def _sent(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Read records, none of them too large."""
        limits = self._registry.limits
        records = unpack(data)
        if len(records) > limits.batch:
            raise LimitError(f"a request has at most {limits.batch} items; this one has {len(records)}")
        for _, payload in records:
            if len(payload) > limits.item_bytes:
                raise LimitError(item_too_large(limits.item_bytes, len(payload)))
        return records

    async def _room(self, request: web.BaseRequest, name: str) -> web.Response:
        body = self._body(await self._read(request), "count", "wait")
        count = check_count("count", body.get("count", 1), 1)
        free = await self._registry.await_room(name, count, self._wait_of(body), _hung_up(request))
        return json_answer({"free": free})

    async def _replies(self, request: web.BaseRequest, name: str) -> web.Response:
        body = self._body(await self._read(request), "item_ids", "wait")
        item_ids = ids_of(body) or []
        if len(item_ids) > self._registry.limits.batch:
            raise LimitError(f"a request has at most {self._registry.limits.batch} item_ids")
        slot, number = slot_of(request)
        key = None if slot is None else Key(slot, number)
        found = await self._registry.fetch(name, item_ids, self._wait_of(body), key, _hung_up(request))
        metas = [{"item_id": reply.item_id, "outcome": reply.outcome} for reply in found]
        return body_answer(metas, [reply.payload or b"" for reply in found])

    def _wait_of(self, body: dict[str, Any]) -> float:
        return min(
            check_seconds("wait", body.get("wait", 0.0), zero=True), self._registry.limits.wait_seconds
        )

    async def _pop(self, request: web.BaseRequest, data: bytes, name: str, key: Key | None) -> dict[str, Any]:
        body = self._body(data, "n", "lease_timeout", "wait")
        limits = self._registry.limits
        n = min(check_count("n", body.get("n", 1), 1), limits.batch)
        lease_timeout = check_seconds("lease_timeout", body.get("lease_timeout", 60.0))
        wait, gone = self._wait_of(body), self._unwanted(request, key)
        answers = PROTOCOL_HEADER in request.headers
        taken = await self._registry.pop(name, n, lease_timeout, wait, key, gone, answers=answers)
        return {**leases_told(name, taken), "taken": taken}

    def _unwanted(self, request: web.BaseRequest, key: Key | None) -> Callable[[], bool]:
        """Return a function that returns whether nobody waits for what a pop may lease."""
        hung_up, requests = _hung_up(request), self._registry.requests
        return lambda: hung_up() or (key is not None and requests.is_withdrawn(*key))

    async def _withdraw(self, request: web.BaseRequest, name: str) -> web.Response:
        asked = (self._body(await self._read(request), "request")).get("request")
        if not isinstance(asked, str):
            raise BadRequestError("request is what the request has as its Fray-Request: name/7")
        answer = self._registry.requests.withdraw(*parsed_slot(asked), {"queue": name, "leases": []})
        self._registry.look_again(name)  # the pop that waits is one of those that do
        try:
            reply = await asyncio.shield(answer)
        except Exception:  # noqa: BLE001 - whatever failed it: it leased nothing
            return json_answer({})
        if reply.get("queue") == name and (leases := reply.get("leases")):
            await self._registry.give_back(name, leases, None)
        return json_answer({})

    async def _done(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        leases = leases_of(self._body(data, "leases"))
        return await self._registry.done(name, [lease_id for _, lease_id in leases], key)

    async def _finish(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        lease_ids, given = outcomes_of(self._sent(data))
        return await self._registry.done(name, lease_ids, key, given)

    async def _release(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        body = self._body(data, "item_id", "lease_id", "delay", "error", "reason", "failure")
        delay, error = check_seconds("delay", body.get("delay", 0.0), zero=True), body.get("error")
        if error is not None and not isinstance(error, str):
            raise BadRequestError("error is text: why the item cannot be unpickled")
        reason, pickled = failure_of(body)
        failure = Failure(reason, pickled, unreadable=error)
        return await self._registry.release(name, lease_of(body)[1], delay, failure, key)

    async def _extend(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        body = self._body(data, "item_id", "lease_id", "lease_timeout")
        lease_timeout = check_seconds("lease_timeout", body.get("lease_timeout"))
        return await self._registry.extend(name, lease_of(body)[1], lease_timeout, key)

    async def _extend_many(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        body = self._body(data, "leases", "lease_timeout")
        lease_timeout = check_seconds("lease_timeout", body.get("lease_timeout"))
        lease_ids = [lease_id for _, lease_id in leases_of(body)]
        return await self._registry.extend_many(name, lease_ids, lease_timeout, key)

    async def _give_back(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        leases = leases_of(self._body(data, "leases"))
        return await self._registry.give_back(name, [lease_id for _, lease_id in leases], key)

    async def _requeue(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        item_ids = ids_of(self._body(data, "item_ids"))
        return await self._registry.requeue(name, item_ids, key)

    async def _purge(
        self, request: web.BaseRequest, data: bytes, name: str, key: Key | None
    ) -> dict[str, Any]:
        body = self._body(data, "dead", "item_ids")
        dead, item_ids = body.get("dead", False), ids_of(body)
        if not isinstance(dead, bool):
            raise BadRequestError("dead is true or false")
        if item_ids is not None and not dead:
            raise BadRequestError("item_ids are those of dead letters: it needs dead, else all items go")
        return await self._registry.purge(name, item_ids, key, dead=dead)

    async def _peek(self, request: web.BaseRequest, name: str) -> web.Response:
        first = await self._registry.store.peek(name)
        return records_answer([{"item_id": first.item_id}], [first]) if first else records_answer([], [])

    async def _dead(self, request: web.BaseRequest, name: str) -> web.Response:
        limit, after = limit_of(request), place_of(request)
        return json_answer(await self._letters(name, after, limit))

    async def _letters(self, name: str, after: int, limit: int | None) -> dict[str, Any]:
        dead, more = await self._registry.store.dead(name, after, limit)
        return {"dead": [{**dead_meta(each), "place": each.seq} for each in dead], "more": more}

    async def _dead_records(self, request: web.BaseRequest, name: str) -> web.Response:
        most = self._registry.limits.batch
        dead, more = await self._registry.store.dead(name, place_of(request), most, payloads=True)
        return records_answer([{**dead_meta(each), "place": each.seq, "more": more} for each in dead], dead)

    async def _stats(self, request: web.BaseRequest, name: str) -> web.Response:
        limits = self._registry.limits
        return json_answer(
            {
                **await self._told(name),
                "item_bytes": limits.item_bytes,
                "batch": limits.batch,
                "protocol": PROTOCOL,
            }
        )

    async def _list_queues(self, request: web.BaseRequest, name: str) -> web.Response:
        if limit_of(request) is not None:
            return json_answer(await self._listed(queue_page.Query(request.query)))
        stats = await self._registry.store.all_stats()
        return json_answer({"queues": [self._with_rates(each) for each in stats]})

    async def _listed(self, query: queue_page.Query) -> dict[str, Any]:
        listed = await self._registry.store.page_of_stats(query)
        return {**listed, "queues": [self._with_rates(each) for each in listed["queues"]]}

    async def _told(self, name: str) -> dict[str, Any]:
        return self._with_rates(await self._registry.store.stats(name))

    def _with_rates(self, stats: dict[str, Any]) -> dict[str, Any]:
        return with_rates(stats, self._registry.traffic(stats["name"]).rates)

    async def _healthz(self, request: web.BaseRequest, name: str) -> web.Response:
        self._registry.store.check()
        return web.Response(text="ok\n", content_type=TEXT)

    async def _metrics(self, request: web.BaseRequest, name: str) -> web.Response:
        stats = await self._registry.store.all_stats()
        text = metrics_text([self._with_rates(each) for each in stats])
        return web.Response(
            body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    # --- reading ---

    async def _read(self, request: web.BaseRequest) -> bytes:
        data, held = await self._hold(request)
        self._bodies.give_back(held)
        return data

    async def _hold(self, request: web.BaseRequest) -> tuple[bytes, int]:
        """Read a body; return it, and what is to be given back when it has been worked on."""
        announced = 0 if request.content.is_eof() else request.content_length  # it came with its head: small
        held = self._bodies.take(None if "Content-Encoding" in request.headers else announced)
        try:
            return await self._whole(request), held
        except BaseException:
            self._bodies.give_back(held)
            raise

    async def _whole(self, request: web.BaseRequest) -> bytes:
        limits = self._registry.limits
        try:
            if request.content.is_eof():
                data = request.content.read_nowait()
            else:
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
        seconds = self._registry.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                return await request.read()
        except TimeoutError:
            raise TimeoutError(
                f"the body did not arrive within {seconds:g} s, the server's body_seconds (--body-seconds)"
            ) from None

    def _body(self, data: bytes, *fields: str) -> dict[str, Any]:
        try:
            body = _decode(data.decode()) if data else {}
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise BadRequestError("the body is not a JSON object")
        for field in body:
            if field not in fields:
                raise BadRequestError(f"unknown field {field!r}; known: {', '.join(fields)}")
        return body


def _hung_up(request: web.BaseRequest) -> Callable[[], bool]:
    """Return a function that returns whether a request's client is gone."""
    return lambda: request.transport is None or request.transport.is_closing()


def _fail(answer: "asyncio.Future[Any]", error: BaseException) -> None:
    """Pass the failure to a repetition that waits; there may be none."""
    if not answer.done():
        answer.set_exception(error if isinstance(error, Exception) else QueueUnavailableError("interrupted"))
        answer.exception()  # seen
