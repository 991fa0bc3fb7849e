"""A small Google Cloud Storage: JSON API for objects, faithful in what a queue rests on.

Preconditions (`ifGenerationMatch`), their 412, the 404s, strongly consistent listings in pages with
prefix and delimiter, generations that grow. What is not here answers 501.
"""

import base64
import bisect
import itertools
import json
import threading
import zlib
from datetime import UTC, datetime, timedelta
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from local_server import LocalServer, send

_PAGE = 100


class GcsEmulator(LocalServer):
    """A server with one bucket, `bucket`."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, tuple[int, bytes, str]] = {}  # name -> generation, content, time
        self.honours_preconditions = True
        self.clock_offset = 0.0
        self.refuses = False  # whether its user has no right to anything
        self.requests = 0
        self._generations = itertools.count(1)
        self._lock = threading.Lock()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        status, media, answer = self.answer(request.command, request.path, body, request.headers)
        send(request, status, media, answer)

    def answer(self, method: str, target: str, body: bytes, headers: Any) -> tuple[int, str, bytes]:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = parts.path.replace("/upload/", "/").replace("/download/", "/")
        bucket, _, name = path.removeprefix("/storage/v1/b/").partition("/o")
        if not path.startswith("/storage/v1/b/") or bucket != "bucket":
            return _error(404, "notFound", f"{method} {target} is not here")
        if self.refuses:
            return _error(403, "forbidden", "the user has no access to the bucket")
        with self._lock:
            self.requests += 1
            return self._object(method, unquote(name.removeprefix("/")), query, body, headers)

    def _object(
        self, method: str, name: str, query: dict[str, str], body: bytes, headers: Any
    ) -> tuple[int, str, bytes]:
        if method == "POST" and query.get("uploadType") == "multipart":
            return self._upload(query, body, headers)
        if method == "GET" and not name:
            return _json(self._list(query))
        if name not in self.objects:
            return _error(404, "notFound", f"No such object: bucket/{name}")
        if not self._fits(name, query):
            return _error(
                412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."
            )
        if method == "GET" and query.get("alt") == "media":
            return 200, "application/octet-stream", self.objects[name][1]
        if method == "GET":
            return _json(self._resource(name))
        if method == "DELETE":
            del self.objects[name]
            return 204, "application/json", b""
        return _error(501, "notImplemented", f"{method} {name}")

    def _fits(self, name: str, query: dict[str, str]) -> bool:
        wanted = query.get("ifGenerationMatch")
        if wanted is None or not self.honours_preconditions:
            return True
        generation = self.objects[name][0] if name in self.objects else 0
        return int(wanted) == generation

    def _upload(self, query: dict[str, str], body: bytes, headers: Any) -> tuple[int, str, bytes]:
        head = b"Content-Type: " + headers["Content-Type"].encode() + b"\r\n\r\n"
        boundary = BytesParser(policy=HTTP).parsebytes(head).get_boundary()
        assert boundary is not None
        mark = b"--" + boundary.encode()
        meta, content = body.removesuffix(b"\n" + mark + b"--").split(b"\n" + mark + b"\n", 1)
        name = json.loads(meta.partition(b"\n\n")[2])["name"]
        if not self._fits(name, query):
            return _error(
                412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold."
            )
        now = datetime.now(UTC) + timedelta(seconds=self.clock_offset)
        data = content.partition(b"\n\n")[2]
        self.objects[name] = (next(self._generations), data, now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        return _json(self._resource(name))

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        every, token = sorted(self.objects), query.get("pageToken", "")
        entries: dict[str, str] = {}  # what is listed -> "item" or "prefix"
        place = bisect.bisect_left(every, max(prefix, token))
        while place < len(every) and every[place].startswith(prefix) and len(entries) <= _PAGE:
            name = every[place]
            folder, mark, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            shown = prefix + folder + mark if mark else name
            if shown > token:
                entries[shown] = "prefix" if mark else "item"
            # What begins with a prefix is listed once.
            place = bisect.bisect_left(every, shown + "\U0010ffff", place) if mark else place + 1
        names = list(entries)
        page = names[:_PAGE]
        answer: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [self._resource(name) for name in page if entries[name] == "item"],
            "prefixes": [name for name in page if entries[name] == "prefix"],
        }
        if len(names) > _PAGE:
            answer["nextPageToken"] = page[-1]
        return answer

    def _resource(self, name: str) -> dict[str, Any]:
        generation, data, time = self.objects[name]
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": "bucket",
            "generation": str(generation),
            "metageneration": "1",
            "size": str(len(data)),
            "timeCreated": time,
            "updated": time,
            "crc32c": base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode(),
        }


def _json(value: Any) -> tuple[int, str, bytes]:
    return 200, "application/json", json.dumps(value).encode()


def _error(status: int, reason: str, message: str) -> tuple[int, str, bytes]:
    error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    return status, "application/json", json.dumps({"error": error}).encode()
