"""What a server's refusals are to a program."""

import json
from collections.abc import Callable
from typing import Any

from fray import LeaseExpiredError, QueueUnavailableError, UnsupportedError
from fray_queue._errors import (
    AccessRefusedError,
    ForeignHostError,
    LimitError,
    NoRoomError,
    QueueExistsError,
    QueueFullError,
    QueueNotFoundError,
    QueueVersionError,
    TokenError,
    UnknownRouteError,
)

_AWAY = frozenset({502, 503, 504})  # the server is not there, or not yet
_LATER = frozenset({408, 425, 429})  # of what stands before a server: it was too slow, or asked too often
_TOO_LARGE = 413


def error_of(status: int, answer: bytes) -> Exception:
    """Return the error that an answer with this status stands for: a QueueUnavailableError may pass."""
    try:
        body = json.loads(answer)
        return _error(status, body["error"], body["message"], body["facts"])
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):  # of another program
        what = f"the server answered {status}: {answer[:200]!r}"
        if status < 400:
            what = f"the queue is at another address: {what}, a redirection, which no client follows"
        if status >= 500 or status in _LATER:
            return QueueUnavailableError(what)
        if status == _TOO_LARGE:
            return LimitError(f"what stands before the server takes no request of that size: {what}")
        return _error(status, "", what, ())


def _error(status: int, code: str, message: str, facts: Any) -> Exception:
    if code == "lease_expired":
        return LeaseExpiredError(*facts)
    if code == "full" and facts and facts[0] == "max_size":
        return NoRoomError(message, bool(facts[1]), int(facts[2]))
    if code == "upgrade":
        return UnsupportedError(message)
    if code == "queue_not_found":
        return QueueNotFoundError(str(facts[0]), tuple(map(str, facts[1])))
    if status in (401, 403) and code != "foreign":
        return TokenError(message)
    kinds: dict[str, Callable[[str], Exception]] = {
        "access": AccessRefusedError,
        "foreign": ForeignHostError,
        "queue_exists": QueueExistsError,
        "full": QueueFullError,
        "limit": LimitError,
        "slow": LimitError,
        "version": QueueVersionError,
    }
    if status in (404, 405) and code == "http":
        return UnknownRouteError(message)
    if status in _AWAY:
        return QueueUnavailableError(message)
    return kinds.get(code, ValueError)(message)
