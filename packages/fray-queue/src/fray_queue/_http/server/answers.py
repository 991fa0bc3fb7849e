"""The small parts of requests and answers."""

import json
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from fray import LeaseExpiredError, QueueUnavailableError, UnsupportedError
from fray.backend import PushOptions
from fray_queue._errors import (
    AccessRefusedError,
    DamagedError,
    LateRequestError,
    LimitError,
    NoRoomError,
    QueueExistsError,
    QueueFullError,
    QueueNotFoundError,
    QueueVersionError,
)
from fray_queue._http.protocol.wire import pack
from fray_queue._http.server.routes import JSON, RECORDS
from fray_queue._items import Taken
from fray_queue._sqlite.library import StoreError

# Header of a request that changes something: the connection's name and the request's number on it.
SLOT_HEADER = "Fray-Request"
_OPTIONS = {"priority", "delay", "ttl", "reply_ttl"}
_LONGEST_SLOT, _LONGEST_NUMBER = 64, 15
_MOST_LISTED = 1000
# Made once: `json.dumps` makes an encoder at each call, and `content_type` a header.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_JSON_HEADERS = CIMultiDict({"Content-Type": JSON})
_RECORDS_HEADERS = CIMultiDict({"Content-Type": RECORDS})
_STATUS: dict[type[Exception], tuple[int, str]] = {
    LeaseExpiredError: (409, "lease_expired"),
    LateRequestError: (409, "late"),
    QueueExistsError: (409, "queue_exists"),
    QueueNotFoundError: (404, "queue_not_found"),
    QueueFullError: (507, "full"),
    LimitError: (413, "limit"),
    QueueUnavailableError: (503, "unavailable"),
    DamagedError: (503, "damaged"),
    StoreError: (503, "unavailable"),
    AccessRefusedError: (500, "access"),
    QueueVersionError: (500, "version"),
    TimeoutError: (408, "slow"),
    UnsupportedError: (426, "upgrade"),
}


PROTOCOL_HEADER = "Fray-Protocol"
"""A client that sends it gives answers with `finish`; one of the first release knows none."""


class BadRequestError(ValueError):
    """The request cannot be understood."""


def slot_of(request: web.BaseRequest) -> tuple[str | None, int]:
    """Return the connection and the number that a request carries; None for one that carries none."""
    header = request.headers.get(SLOT_HEADER)
    return (None, 0) if header is None else parsed_slot(header)


def parsed_slot(text: str) -> tuple[str, int]:
    """Return the connection and the number that a request is known by."""
    slot, _, number = text.partition("/")
    if (
        not slot.isalnum()
        or not slot.isascii()
        or len(slot) > _LONGEST_SLOT
        or not number.isdecimal()
        or len(number) > _LONGEST_NUMBER
    ):
        raise BadRequestError(f"{SLOT_HEADER} is a name and a number: name/7")
    return slot, int(number)


def lease_of(body: dict[str, Any]) -> tuple[str, str]:
    """Return the item id and the lease id of a body."""
    item_id, lease_id = body.get("item_id"), body.get("lease_id")
    if not isinstance(item_id, str) or not isinstance(lease_id, str):
        raise BadRequestError("item_id and lease_id are those of a lease")
    return item_id, lease_id


def leases_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of item id and lease id of a body."""
    leases = body.get("leases")
    if not isinstance(leases, list) or not all(_is_pair(lease) for lease in leases):
        raise BadRequestError("leases is a list of pairs of item id and lease id")
    return [(item_id, lease_id) for item_id, lease_id in leases]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def ids_of(body: dict[str, Any]) -> list[str] | None:
    """Return the item ids of a body; None for all."""
    ids = body.get("item_ids")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(each, str) for each in ids)):
        raise BadRequestError("item_ids is a list of ids, or null for all")
    return ids


def options_of(records: Sequence[tuple[dict[str, Any], bytes]]) -> PushOptions:
    """Return the options of a push: the first record's, and each one's key."""
    given = records[0][0].get("options", {}) if records else {}
    if not isinstance(given, dict) or not given.keys() <= _OPTIONS:
        raise BadRequestError(f"options is an object of {', '.join(sorted(_OPTIONS))}")
    keys = tuple(meta.get("key") for meta, _ in records)
    return PushOptions(**given, keys=keys if any(key is not None for key in keys) else None)


def outcomes_of(
    records: Sequence[tuple[dict[str, Any], bytes]],
) -> tuple[list[str], list[tuple[str, bytes] | None]]:
    """Return lease ids and answers, None where an item is finished without one."""
    lease_ids: list[str] = []
    answers: list[tuple[str, bytes] | None] = []
    for meta, payload in records:
        outcome = meta.get("outcome")
        if outcome not in (None, "value", "error"):
            raise BadRequestError("outcome is value or error")
        lease_ids.append(lease_of(meta)[1])
        answers.append(None if outcome is None else (outcome, payload))
    return lease_ids, answers


def failure_of(body: dict[str, Any]) -> tuple[str | None, bytes | None]:
    """Return what failed an attempt: as text, and as its client pickled it."""
    reason, failure = body.get("reason"), body.get("failure")
    if not all(each is None or isinstance(each, str) for each in (reason, failure)):
        raise BadRequestError("reason and failure are text")
    return reason, None if failure is None else b64decode(failure, validate=True)


def place_of(request: web.BaseRequest) -> int:
    """Return the place in line behind which a listing begins; 0 for the first."""
    return _number(request, "after", "0", "the `place` of the last record before")


def limit_of(request: web.BaseRequest) -> int | None:
    """Return how many a listing is to have at most; None for all."""
    if "limit" not in request.query:
        return None
    return max(1, min(_MOST_LISTED, _number(request, "limit", "", "a count")))


def _number(request: web.BaseRequest, name: str, default: str, what: str) -> int:
    given = request.query.get(name, default)
    if not (given.isascii() and given.isdecimal() and len(given) <= _LONGEST_NUMBER):
        raise BadRequestError(f"{name} is {what}")
    return int(given)


def json_answer(value: Any) -> web.Response:
    """Answer with JSON."""
    return web.Response(body=_encode(value).encode(), headers=_JSON_HEADERS)


def records_answer(metas: Iterable[dict[str, Any]], entries: Sequence[Taken]) -> web.Response:
    """Answer with what entries hold, and the fields of each."""
    return body_answer(metas, [entry.payload for entry in entries])


def body_answer(metas: Iterable[dict[str, Any]], payloads: Sequence[bytes]) -> web.Response:
    """Answer with payloads, and the fields of each."""
    return web.Response(body=pack(metas, payloads), headers=_RECORDS_HEADERS)


def error_answer(error: Exception) -> web.Response:
    """Answer with an error that the caller can do something about."""
    status, code = next(
        (known for kind, known in _STATUS.items() if isinstance(error, kind)), (400, "bad_request")
    )
    facts: tuple[Any, ...] = ()
    if isinstance(error, LeaseExpiredError | QueueNotFoundError):
        facts = error.args
    elif isinstance(error, NoRoomError):  # "full" to clients that know no bound
        facts = ("max_size", error.ever, error.count)
    return refusal(status, code, str(error), facts)


def refusal(status: int, code: str, message: str, facts: tuple[Any, ...] = ()) -> web.Response:
    """Answer with an error; the client builds it again from `facts`."""
    body = json.dumps({"error": code, "message": message, "facts": facts}).encode()
    later = {"Retry-After": "1"} if status == 503 else None
    return web.Response(status=status, body=body, content_type=JSON, headers=later)


def lease_meta(entry: Taken) -> dict[str, Any]:
    """Return the fields of a lease, without the item."""
    meta = {
        "item_id": entry.item_id,
        "lease_id": entry.lease_id,
        "timestamp": entry.leased_at,
        "attempt": entry.attempt,
        "expires_at": entry.until,
    }
    if entry.reply:
        meta["reply"] = True
    if entry.pushed_at is not None:
        meta["pushed_at"] = entry.pushed_at
    return meta


def dead_meta(entry: Taken) -> dict[str, Any]:
    """Return the fields of a dead letter, without the item."""
    return {
        **({"expired": True} if entry.expired else {}),
        "item_id": entry.item_id,
        "attempts": entry.attempt,
        "bytes": entry.size,
        "history": [
            (each.number, each.outcome, each.started_at, each.ended_at, each.error) for each in entry.history
        ],
    }
