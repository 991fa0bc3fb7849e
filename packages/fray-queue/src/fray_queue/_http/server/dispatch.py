"""From a request to its handler, and from what went wrong to an answer.

It stands right behind aiohttp's protocol, in the place of an application: a router and middlewares
cost as much as all that a queue does for a request.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

from aiohttp import web

from fray import FrayError
from fray.backend import queue_page
from fray_queue._errors import QueueNotFoundError
from fray_queue._http.server.answers import error_answer, refusal
from fray_queue._http.server.auth import EVERYTHING, Grant
from fray_queue._http.server.request_check import OPEN_PATH, RequestCheck

_log = logging.getLogger("fray.queue")
_QUEUES = "/queues/"
Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]
"""Is called with a request and the name of the queue in its path, if there is one."""


class Dispatch:
    """What answers each request of a server.

    Args:
        handlers: By method, then by path with `{name}` for a queue's name.
    """

    def __init__(self, handlers: Mapping[str, Mapping[str, Handler]], check: RequestCheck) -> None:
        self._handlers, self._check = handlers, check
        self._paths = {path for paths in handlers.values() for path in paths}

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        response: web.StreamResponse
        path, name = _split(request)
        checked = EVERYTHING if path == OPEN_PATH else self._check.check(request, path, name)
        try:
            if not isinstance(checked, Grant):
                response = checked
            elif handler := self._handlers.get(request.method, {}).get(path):
                response = await handler(request, name)
            else:
                response = self._no_handler(path)
        except web.HTTPException as error:
            response = refusal(error.status, "http", error.reason)
        except QueueNotFoundError as error:
            limited = isinstance(checked, Grant) and checked.is_limited
            response = error_answer(QueueNotFoundError(name) if limited else error)
        except (FrayError, ValueError, TimeoutError) as error:
            response = error_answer(error)
        except ConnectionError:  # the client went away before it had said everything
            response = refusal(400, "bad_request", "the body did not arrive")
        except Exception:  # noqa: BLE001 - a client learns that it failed, not how
            _log.exception("%s %s failed", request.method, request.path)
            response = refusal(500, "internal", "the server failed; its log says why")
        if request.method == "GET":  # what a browser shows; a client's own calls are spared their parsing
            response.headers.update(queue_page.HEADERS)
        return response

    def _no_handler(self, path: str) -> web.StreamResponse:
        if path in self._paths:
            return refusal(405, "http", "Method Not Allowed")
        return refusal(404, "http", "Not Found")


def _split(request: web.BaseRequest) -> tuple[str, str]:
    """Return a request's path with `{name}` in the place of a queue's name, and that name."""
    path = request.raw_path
    if not path.startswith("/") or "?" in path:
        path = request.rel_url.raw_path
    if not path.startswith(_QUEUES):
        return path, ""
    name, slash, verb = path[len(_QUEUES) :].partition("/")
    return f"{_QUEUES}{{name}}{slash}{verb}", unquote(name) if "%" in name else name
