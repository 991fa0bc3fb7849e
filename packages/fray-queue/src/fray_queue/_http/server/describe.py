"""What the server tells about itself: statistics, metrics, and its routes in OpenAPI."""

from collections.abc import Iterable
from typing import Any

from fray_queue._http.server.named_queue import NamedQueue
from fray_queue._http.server.routes import JSON, RECORDS, ROUTES, Route
from fray_queue._http.server.rows import MOST_ATTEMPTS

_METRICS = {
    "pending": ("gauge", "Items that a pop could take now."),
    "in_flight": ("gauge", "Items that are leased or delayed."),
    "dead": ("gauge", "Dead letters."),
    "oldest_seconds": ("gauge", "Age of the oldest item."),
    "pushed_total": ("counter", "Items stored since the server started."),
    "popped_total": ("counter", "Leases given since the server started."),
    "done_total": ("counter", "Items finished since the server started."),
}


def queue_stats(queue: NamedQueue, now: float) -> dict[str, Any]:
    """Count what is in a queue, and what went through it."""
    machine = queue.machine
    size, pending = machine.size(now), machine.pending(now)
    oldest = machine.oldest()
    return {
        "name": queue.name,
        "max_attempts": machine.max_attempts,
        "size": size,
        "pending": pending,
        "in_flight": size - pending,
        "dead": len(machine.dead),
        "oldest_seconds": max(0.0, now - oldest.pushed_at) if oldest else 0.0,
        "pushed_total": queue.rates.pushed,
        "popped_total": queue.rates.popped,
        "done_total": queue.rates.done,
        "plots": queue.rates.plots(),
    }


def metrics_text(queues: Iterable[NamedQueue], now: float) -> str:
    """Write the counts as Prometheus reads them; names of queues need no escaping."""
    stats = [queue_stats(queue, now) for queue in queues]
    lines: list[str] = []
    for name, (kind, text) in _METRICS.items():
        lines += [f"# HELP fray_queue_{name} {text}", f"# TYPE fray_queue_{name} {kind}"]
        lines += [f'fray_queue_{name}{{queue="{each["name"]}"}} {each[name]}' for each in stats]
    return "\n".join(lines) + "\n"


_ERRORS = {
    400: "The request cannot be understood; nothing changed.",
    401: "The token is missing or wrong.",
    403: "The Host or the Origin is foreign.",
    404: "There is no queue of that name.",
    408: "The body did not arrive in time; nothing changed.",
    409: "The lease is not good, the queue has other settings, or a later request came before; no change.",
    413: "The request is beyond a limit of the server; nothing changed.",
    503: "The server is stopping, or can write its store no more.",
    507: "The store is full; it keeps what it has.",
}


def description() -> dict[str, Any]:
    """Describe the routes in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fray queues", "version": "1", "description": _WIRE},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.summary,
        "responses": {"200": {"description": "Done.", "content": {route.gives: _schema(route.gives)}}},
    }
    for status in route.statuses:
        operation["responses"][str(status)] = {"description": _ERRORS[status]}
    parameters = [_NAME] if "{name}" in route.path else []
    parameters += [_QUERY[name] for name in route.query]
    if route.changes:
        parameters.append(_REQUEST)
    if parameters:
        operation["parameters"] = parameters
    if route.takes == JSON:
        body = {"schema": {"type": "object", "properties": {field: _FIELDS[field] for field in route.fields}}}
        operation["requestBody"] = {"content": {JSON: body}}
    elif route.takes:
        operation["requestBody"] = {"required": True, "content": {route.takes: _schema(route.takes)}}
    if route.handler == "healthz":
        operation["security"] = []
    return operation


def _schema(media: str) -> dict[str, Any]:
    return (
        {"schema": {"type": "object"}}
        if media == JSON
        else {}
        if media == RECORDS
        else {"schema": {"type": "string"}}
    )


_WIRE = (
    "Bodies of application/octet-stream are records: 'FRQ1', the length and the CRC-32 of a header "
    "(big-endian, 4 bytes each), the header (a JSON list with an object per payload that has its `size` "
    "and `crc`), the payloads."
)
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_QUERY = {
    "after": {
        "name": "after",
        "in": "query",
        "required": False,
        "description": "The `place` of the last record of the answer before.",
        "schema": {"type": "integer", "minimum": 0},
    }
}
_REQUEST = {
    "name": "Fray-Request",
    "in": "header",
    "required": False,
    "description": "connection/number: a repeated request is answered as the first was, and done once.",
    "schema": {"type": "string"},
}
_FIELDS: dict[str, dict[str, Any]] = {
    "max_attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_ATTEMPTS},
    "n": {"type": "integer", "minimum": 1},
    "lease_timeout": {"type": "number", "exclusiveMinimum": 0},
    "wait": {"type": "number", "minimum": 0},
    "delay": {"type": "number", "minimum": 0},
    "item_id": {"type": "string"},
    "lease_id": {"type": "string"},
    "leases": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
    "item_ids": {"type": ["array", "null"], "items": {"type": "string"}},
    "dead": {"type": "boolean"},
}
