"""Requests that no page of ours makes are refused, and nothing is done for them."""

import base64
import http.client
import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from clusters import StubCluster, job
from hypothesis import given, settings
from hypothesis import strategies as st

from fray import FrayError
from fray.backend import UiServer

TOKEN = "a-token-of-this-test"
GOOD = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}
JOB, LETTERS = json.dumps({"id": "train-1"}), json.dumps({"item_ids": None})
PURGED = json.dumps({"dead": True, "item_ids": None})
GETS = (
    "/",
    "/job?id=train-1",
    "/part/jobs",
    "/part/job?id=train-1",
    "/part/log?id=train-1",
    "/part/usage?id=train-1",
    "/part/about?id=train-1",
    "/queues",
    "/queue?name=tasks",
    "/part/queues",
    "/part/queue?name=tasks",
    "/part/letters?name=tasks",
)
POSTS = {
    "/job/stop": JOB,
    "/job/retry": JOB,
    "/servers/tests/queues/tasks/requeue": LETTERS,
    "/servers/tests/queues/tasks/purge": PURGED,
}
OPEN = ("/healthz", "/page.css", "/page.js", "/icon.svg")  # to everybody, under the server's own name
Wrong = tuple[str, str, dict[str, str], str]  # method, path, headers, body


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f":{password}".encode()).decode()


def everywhere(headers: Mapping[str, str], token: Mapping[str, str] = GOOD) -> Iterator[Wrong]:
    """Yield the request of every route, with other headers than it should have."""
    yield from (("GET", path, {**token, **headers}, "") for path in GETS)
    yield from (("POST", path, {**token, **JSON, **headers}, body) for path, body in POSTS.items())


def wrong_tokens() -> Iterator[Wrong]:
    yield from everywhere({}, token={})
    for authorization in (
        "",
        "Bearer",
        "Bearer x",
        f"Bearer {TOKEN}x",
        f"bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        basic("x"),
        "Basic !!",
        "Digest x",
    ):
        yield from everywhere({"Authorization": authorization})
    yield from everywhere({"Cookie": f"fray-ui-1={TOKEN}; token={TOKEN}"}, token={})  # of another port
    for path in GETS:
        for token in ("x", f"{TOKEN}%00", f"{TOKEN}%0d%0aSet-Cookie:%20a=b", ""):
            yield "GET", f"{path}{'&' if '?' in path else '?'}token={token}", {}, ""
    yield from (("POST", f"{path}?token={TOKEN}", dict(JSON), body) for path, body in POSTS.items())


def wrong_hosts() -> Iterator[Wrong]:
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "localhost:80:80",
        "[::1",
        "127.0.0.1@evil",
        "",
        "a b",
        "0.0.0.0",
        "127.0.0.1/",
    ):
        yield from everywhere({"Host": host})
        yield from (("GET", path, {"Host": host}, "") for path in OPEN)


def wrong_origins() -> Iterator[Wrong]:
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "https://127.0.0.1.evil",
        "file://",
        "x",
        "",
    ):
        yield from everywhere({"Origin": origin})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        yield from (("POST", path, {**GOOD, "Content-Type": kind}, body) for path, body in POSTS.items())
    for site in ("cross-site", "same-site", "none"):
        for path, body in POSTS.items():
            yield "POST", path, {**GOOD, **JSON, "Sec-Fetch-Site": site}, body


def wrong_methods() -> Iterator[Wrong]:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        yield from ((method, path, GOOD | JSON, JOB) for path in (*GETS, *POSTS))
    yield from (("POST", path, GOOD | JSON, JOB) for path in GETS)
    yield from (("GET", path, GOOD, "") for path in POSTS)


def wrong_bodies() -> Iterator[Wrong]:
    for body in (
        "",
        "null",
        "[]",
        "{",
        '{"id": 7}',
        '{"id": ""}',
        '{"id": null}',
        '{"id": "train-1", "grace": "0"}',
        '{"id": "train-1", "cluster": "other"}',
        '{"id": "../train-1"}',
        '{"id": "/etc/passwd"}',
        '{"id": "a//b"}',
        '{"id": "a\\u0000b"}',
        '{"item_ids": "x"}',
        '{"item_ids": [1]}',
        '{"item_ids": null, "dead": false}',
        '{"item_ids": null, "dead": 1}',
        "\x00",
        json.dumps({"id": "x" * 2000}),
        "[" * 50_000,
        "x" * 100_000,
    ):
        yield from (("POST", path, GOOD | JSON, body) for path in POSTS)
    for name in ("..", "%2e%2e", "..%2f..%2fx", "a%2fb", "%00", "", "x" * 1000):
        for verb, body in (("requeue", LETTERS), ("purge", PURGED), ("push", LETTERS), ("", LETTERS)):
            yield "POST", f"/servers/tests/queues/{name}/{verb}", GOOD | JSON, body
        yield "POST", f"/servers/{name}/queues/tasks/purge", GOOD | JSON, PURGED


def wrong_addresses() -> Iterator[Wrong]:
    names = ("", "..", "../..", "a/../b", "/etc/passwd", "a//b", "a/", "\x00", "a\r\nb", "x" * 501)
    for path in ("/job", "/part/job", "/part/log", "/part/usage", "/part/about"):
        yield "GET", path, GOOD, ""
        yield from (("GET", f"{path}?id={quote(name, safe='')}", GOOD, "") for name in names)
    for path in ("/queue", "/part/queue", "/part/letters"):
        yield "GET", path, GOOD, ""
        for name in ("", "..", ".", "a/b", "../../x", "\x00", "a\nb", "x" * 501):
            yield "GET", f"{path}?name={quote(name, safe='')}", GOOD, ""
        yield "GET", f"{path}?name=tasks&server=other", GOOD, ""
    for query in (
        "status=dead",
        "sort=rm",
        "page=-1",
        "page=1e9",
        "page=%D9%A1",
        f"q={'x' * 501}",
        "cluster=x",
        "id=..",
    ):
        yield "GET", f"/part/jobs?{query}", GOOD, ""
    for query in ("only=x", "sort=rm", "page=-1", f"q={'x' * 501}", "server=x"):
        yield "GET", f"/part/queues?{query}", GOOD, ""
    for query in ("lines=1000000", "lines=x", "replica=x", "replica=-1"):
        yield "GET", f"/part/log?id=train-1&{query}", GOOD, ""
    for path in (
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/page.css/../server.py",
        "/static/page.js",
        "/page.js/",
        "/server.py",
        "/%00",
        "//evil.example/",
        "/part/",
        "/part/../job",
        "/.git/config",
        f"/{'x' * 9000}",
    ):
        yield "GET", path, GOOD, ""
    yield "GET", "/", GOOD | {"X-Long": "x" * 100_000}, ""


def raw_requests() -> Iterator[bytes]:
    """Yield what is no request, or could be read as another one; each has the token."""
    token = f"Authorization: Bearer {TOKEN}".encode()
    host = b"Host: 127.0.0.1"
    yield from (
        b"\x16\x03\x01\x02\x00",
        b"GET /",
        b"A" * 100_000,
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"GET / HTTP/9.9",
    )
    for lines in (
        [b"GET / HTTP/1.1", b"Host", token],
        [b"GET / HTTP/1.1", token],
        [b"GET / HTTP/1.0", token],
        [b"GET / HTTP/1.1", b"Host: evil.example", token],
        [b"GET / HTTP/1.1", host, token, b"Bad Name: x"],
        [b"GET / HTTP/1.1", host, token, b"X: a\x00b"],
        [b"GET / HTTP/1.1", host, token, b"X: a\rb"],
        [b"GET  / HTTP/1.1", host, token, b" folded: x"],
        [b"POST /job/stop HTTP/1.1", host, token, b"Content-Length: -1"],
        [b"POST /job/stop HTTP/1.1", host, token, b"Content-Length: 1_0"],
        [b"POST /job/stop HTTP/1.1", host, token, b"Content-Length: 5", b"Content-Length: 6"],
        [b"POST /job/stop HTTP/1.1", host, token, b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"POST /job/stop HTTP/1.1", host, token, b"Transfer-Encoding: chunked, identity"],
    ):
        yield b"\r\n".join(lines)


KINDS: tuple[Callable[[], Iterator[Wrong]], ...] = (
    wrong_tokens,
    wrong_hosts,
    wrong_origins,
    wrong_methods,
    wrong_bodies,
    wrong_addresses,
)


class StubQueues:
    """A server of queues that would do whatever it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.asked.append((method, path))
        if path.startswith("/queues/") and not re.match("/queues/tasks(/|$)", path):
            raise FrayError("there is no such queue")
        counts = {"total": 0, "named": 0, "found": 0, "waiting": 0, "dead": 0}
        if path.endswith("/tasks"):
            numbers = ("pending", "in_flight", "dead", "size", "bytes", "pushed_total", "done_total")
            plots = {key: [0] for key in ("pushed", "done", "size")}
            return {
                **dict.fromkeys(numbers, 0),
                "oldest_seconds": None,
                "max_attempts": None,
                "durable": True,
                "plots": plots,
            }
        return {"counts": counts, "queues": [], "page": 0, "dead": [], "more": False, "count": 0}


def ask(url: str, method: str, path: str, headers: dict[str, str], body: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for key, value in headers.items():
            connection.putheader(key, value)
        data = body.encode()
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.timeout(120)
def test_hostile_requests_are_refused() -> None:
    stub, queues = StubCluster(), StubQueues()
    stub.add(job("train-1"))
    counts = {}
    with UiServer({"stub": stub}, queues={"tests": queues}, token=TOKEN) as server:
        for kind in KINDS:
            for number, (method, path, headers, body) in enumerate(kind(), 1):
                status = ask(server.url, method, path, headers, body)
                assert 400 <= status < 500, (method, path, headers, body[:60], status)
                counts[kind.__name__] = number
        for number, raw in enumerate(raw_requests(), 1):
            with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=30) as line:
                line.sendall(raw + b"\r\n\r\n")
                answer = line.recv(100)
            assert re.match(rb"HTTP/[01]\.[019] 4|$", answer), (raw[:80], answer)
            counts["raw_requests"] = number
        assert (stub.asked, [asked for asked in queues.asked if asked[0] != "GET"]) == ([], [])
        for path in (*GETS, *OPEN):  # and the good ones are answered
            assert ask(server.url, "GET", path, GOOD, "") == 200, path
        assert ask(server.url, "GET", "/", {"Authorization": basic(TOKEN)}, "") == 200
        for path, body in POSTS.items():
            assert ask(server.url, "POST", path, GOOD | JSON, body) == 200, path
        assert stub.asked == [("stop", "train-1"), ("retry", "train-1")]
        assert [path for method, path in queues.asked if method == "POST"] == [
            "/queues/tasks/requeue",
            "/queues/tasks/purge",
        ]
    print(f"{sum(counts.values())} hostile requests, all refused: {counts}")


TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        "",
        "train-1",
        "tasks",
        "0",
        "-1",
        "1e999",
        "9" * 5000,
        "²",
        "nan",
        "../..",
        "\x00",
        "(",
        "*",
        "a" * 9000,
    ]
)
NAMES = (
    "id",
    "name",
    "q",
    "only",
    "sort",
    "page",
    "after",
    "replica",
    "grep",
    "tail",
    "since",
    "attempt",
    "x",
)
QUERIES = st.lists(st.tuples(st.sampled_from(NAMES) | TEXTS, TEXTS), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=4,
)
FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "item_ids", "dead"), VALUES))
BODIES = (FIELDS | VALUES).map(json.dumps) | TEXTS | st.just("[" * 100_000)


@pytest.mark.usefixtures("no_collection")
def test_values_of_any_kind_from_a_page_with_the_token() -> None:
    stub = StubCluster()
    stub.add(job("train-1"))
    stub.lines = ["one line"]
    paths = [path.partition("?")[0] for path in GETS]
    requests: st.SearchStrategy[Any] = st.tuples(
        st.just("GET"), st.sampled_from(paths), QUERIES, st.just("")
    ) | st.tuples(st.just("POST"), st.sampled_from(list(POSTS)), st.just([]), BODIES)
    with UiServer({"stub": stub}, queues={"tests": StubQueues()}, token=TOKEN) as server:

        @settings(max_examples=200 * int(os.environ.get("TORTURE", "1")), deadline=None, database=None)
        @given(requests)
        def send(request: tuple[str, str, list[tuple[str, str]], str]) -> None:
            method, path, query, body = request
            address = f"{path}?{urlencode(query, errors='surrogatepass')}" if query else path
            headers = GOOD | (JSON if body else {})
            assert ask(server.url, method, address, headers, body) < 500

        send()


def test_what_is_in_an_address_becomes_no_header() -> None:
    with UiServer({"stub": StubCluster()}, token=TOKEN) as server:
        parts = urlsplit(server.url)
        for path in (
            f"/job?id=a%0d%0aSet-Cookie:%20evil=1&token={TOKEN}",
            f"/job?id=a&%0d%0aSet-Cookie:%20evil=1&token={TOKEN}",
            f"/%0d%0aSet-Cookie:%20evil=1?token={TOKEN}",
            f"//evil.example/?token={TOKEN}",
            f"/%2f%2fevil.example?token={TOKEN}",
            f"/%5cevil.example?token={TOKEN}",
            f"/javascript:alert(1)?token={TOKEN}",
        ):
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            assert "evil" not in answer.headers.get("Set-Cookie", ""), path
            assert answer.status in (303, 400, 404), path
            if answer.status == 303:
                assert answer.headers["Location"].startswith("./"), path
                assert "\n" not in answer.headers["Location"]


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    with UiServer({"stub": StubCluster()}, token=TOKEN) as server:
        parts = urlsplit(server.url)
        for path, headers in (
            ("/", GOOD),
            ("/part/jobs", GOOD),
            ("/page.js", {}),
            ("/", {}),
            ("/nowhere", GOOD),
        ):
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in answer.headers
            body = answer.read().decode()
            assert TOKEN not in body
            connection.close()


def test_the_link_leaves_a_cookie_and_no_token_in_the_address() -> None:
    with UiServer({"stub": StubCluster()}, token=TOKEN) as server:
        parts = urlsplit(server.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        connection.request("GET", f"/job?id=a%2Fb&token={TOKEN}")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 303
        assert answer.headers["Location"] == "./job?id=a/b"
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        connection.request("GET", "/", headers={"Cookie": cookie.partition(";")[0]})
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()
        connection.close()


def test_it_listens_on_this_machine_alone() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(ValueError, match="this machine alone"):
            UiServer({"stub": StubCluster()}, host=host)
