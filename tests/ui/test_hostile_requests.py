"""Requests that no page of ours makes are refused, and nothing is done for them."""

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from clusters import StubCluster, job

from fray.backend import UiServer

TOKEN = "a-token-of-this-test"
GETS = (
    "/",
    "/job?id=train-1",
    "/part/jobs",
    "/part/job?id=train-1",
    "/part/log?id=train-1",
    "/part/usage?id=train-1",
)
POSTS = ("/job/stop", "/job/retry")
BODY = json.dumps({"id": "train-1"})
GOOD = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f":{password}".encode()).decode()


def hostile() -> Iterator[tuple[str, str, dict[str, str], str]]:
    """Yield method, path, headers and body."""
    tokens = [
        "",
        "Bearer",
        "Bearer x",
        f"Bearer {TOKEN}x",
        f"bearer {TOKEN[:-1]}",
        basic("x"),
        "Basic !!",
        "Digest x",
    ]
    for authorization in tokens:
        yield from (("GET", path, {"Authorization": authorization}, "") for path in GETS)
        yield from (("POST", path, {"Authorization": authorization} | JSON, BODY) for path in POSTS)
    for path in GETS:
        yield "GET", path, {"Cookie": "fray-ui-1=x; token=x"}, ""
        yield "GET", f"{path}{'&' if '?' in path else '?'}token=x", {}, ""
        yield "GET", f"{path}{'&' if '?' in path else '?'}token={TOKEN}%00", {}, ""
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost:80:80",
        "[::1",
        "127.0.0.1@evil",
        "",
        "a b",
        "0.0.0.0",
    ):
        yield from (("GET", path, GOOD | {"Host": host}, "") for path in GETS)
        yield from (("POST", path, GOOD | JSON | {"Host": host}, BODY) for path in POSTS)
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "https://127.0.0.1.evil",
        "file://",
        "x",
    ):
        yield from (("GET", path, GOOD | {"Origin": origin}, "") for path in GETS)
        yield from (("POST", path, GOOD | JSON | {"Origin": origin}, BODY) for path in POSTS)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        yield from (("POST", path, GOOD | {"Content-Type": kind}, BODY) for path in POSTS)
    for site in ("cross-site", "same-site", "none"):
        yield from (("POST", path, GOOD | JSON | {"Sec-Fetch-Site": site}, BODY) for path in POSTS)
    bodies = [
        "",
        "null",
        "[]",
        "{",
        '{"id": 7}',
        '{"id": ""}',
        '{"id": null}',
        '{"id": "train-1", "grace": "0"}',
        "\x00",
    ]
    bodies += [
        '{"id": "train-1", "cluster": "other"}',
        json.dumps({"id": "x" * 2000}),
        "[" * 50_000,
        "x" * 100_000,
    ]
    for body in bodies:
        yield from (("POST", path, GOOD | JSON, body) for path in POSTS)
    for path in (
        "/job",
        "/part/job",
        "/part/log",
        "/job?id=",
        "/part/jobs?status=dead",
        "/part/jobs?sort=rm",
    ):
        yield "GET", path, GOOD, ""
    for path in (
        "/part/jobs?page=-1",
        "/part/jobs?page=1e9",
        "/part/jobs?page=%D9%A1",
        f"/part/jobs?q={'x' * 501}",
    ):
        yield "GET", path, GOOD, ""
    for path in (
        "/part/jobs?cluster=x",
        "/part/log?id=train-1&lines=1000000",
        "/part/log?id=train-1&replica=x",
    ):
        yield "GET", path, GOOD, ""
    for path in (
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/page.css/../server.py",
        "/static/page.js",
        "/%00",
        "/job/stop",
    ):
        yield "GET", path, GOOD, ""
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        yield from ((method, path, GOOD | JSON, BODY) for path in ("/", "/job/stop", "/part/jobs"))


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


@pytest.mark.timeout(120)
def test_hostile_requests_are_refused() -> None:
    stub = StubCluster()
    stub.add(job("train-1"))
    with UiServer({"stub": stub}, token=TOKEN) as server:
        count = 0
        for method, path, headers, body in hostile():
            status = ask(server.url, method, path, headers, body)
            assert 400 <= status < 500, (method, path, headers, body[:60], status)
            count += 1
        for raw in (
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
            b"GET /\r\n\r\n",
            b"A" * 100_000,
            b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=30) as line:
                line.sendall(raw + b"\r\n\r\n")
                assert not line.recv(100).startswith(b"HTTP/1.1 2")
                count += 1
        assert stub.asked == []
        for path in GETS:  # and the good ones are answered
            assert ask(server.url, "GET", path, GOOD, "") == 200
        assert ask(server.url, "GET", "/", {"Authorization": basic(TOKEN)}, "") == 200
        assert ask(server.url, "POST", "/job/stop", GOOD | JSON, BODY) == 200
        assert stub.asked == [("stop", "train-1")]
    print(f"{count} hostile requests, all refused")


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
