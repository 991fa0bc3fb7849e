"""A user whom an object store refuses gets a PermissionError, and at once."""

import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from gcs_emulator import GcsEmulator
from local_server import LocalServer, send
from store_leftovers import process_wide  # noqa: F401

from fray_queue import FileQueue, work

pytestmark = pytest.mark.timeout(180)
_TIMEOUT = 20.0  # seconds for which a request is repeated


class Refusing(LocalServer):
    """A store that answers every request with one status."""

    def __init__(self, status: int, media: str, answer: bytes) -> None:
        super().__init__()
        self._answer = status, media, answer

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        send(request, *self._answer)


def store_that_refuses(scheme: str, status: int) -> Refusing:
    if scheme == "gs":
        error = {"code": status, "message": "not for you", "errors": []}
        return Refusing(status, "application/json", json.dumps({"error": error}).encode())
    answer = b"<Error><Code>NotForYou</Code><Message>not for you</Message></Error>"
    return Refusing(status, "application/xml", answer)


def options_for(scheme: str, url: str) -> dict[str, Any]:
    account = f"AccountName=a;AccountKey=YQ==;BlobEndpoint={url}/a;"
    options: dict[str, dict[str, Any]] = {
        "s3": {"endpoint_url": url, "key": "a", "secret": "b"},
        "gs": {"endpoint_url": url, "token": "anon", "project": "p"},
        "abfs": {"connection_string": account},
    }
    return {"timeout": _TIMEOUT, **options[scheme]}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("scheme", ["s3", "gs", "abfs"])
def test_a_user_whom_the_store_refuses_gets_an_error_at_once(scheme: str, status: int) -> None:
    with store_that_refuses(scheme, status) as store:
        queue: FileQueue[int] = FileQueue(f"{scheme}://bucket/q", **options_for(scheme, store.url))
        start = time.monotonic()
        with pytest.raises(PermissionError, match=f"{scheme}://bucket/q refused"):
            queue.push(1)
        with pytest.raises(PermissionError, match=f"{scheme}://bucket/q refused"):
            work(queue, str, stop_when_empty=True)
        assert time.monotonic() - start < _TIMEOUT / 2


@pytest.mark.parametrize("call", ["push", "size", "done", "purge"])
def test_a_right_that_is_taken_away_is_an_error_at_once(call: str) -> None:
    with GcsEmulator() as store:
        queue: FileQueue[int] = FileQueue("gs://bucket/q", **options_for("gs", store.url))
        with queue:
            queue.push(1)
            lease = queue.pop()
            assert lease is not None
            arguments: dict[str, list[Any]] = {"push": [2], "done": [lease]}
            store.refuses = True
            start = time.monotonic()
            with pytest.raises(PermissionError, match="gs://bucket/q refused"):
                getattr(queue, call)(*arguments.get(call, []))
            assert time.monotonic() - start < _TIMEOUT / 2
            store.refuses = False
            queue.done(lease)
            assert queue.size() == 0
