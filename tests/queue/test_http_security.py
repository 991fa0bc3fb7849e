"""Who may speak to a server, and what it says to those who may not."""

import asyncio
import gzip
import http.client
import os
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fray.backend import readable
from fray.testing.command_line import main
from fray.testing.queue import ManualClock
from fray_queue import ForeignHostError, HttpQueue, HttpQueueServer, LimitError, Limits, TokenError
from fray_queue.testing import ROUTES, Wire, connections_of, pack, sqlite_connection

TOKEN = "s3cret-token"
AUTHORIZED = {"Authorization": "Bearer of-the-tests"}  # as conftest.py sets it
PATHS = sorted({(route.method, route.path.replace("{name}", "q")) for route in ROUTES})


def ask(
    server: HttpQueueServer,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, bytes, dict[str, str]]:
    address = server.url.partition("://")[2]
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, body, {**AUTHORIZED, **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "authorization", ["", "Bearer wrong", "Basic !!!", "Basic " + "d3Jvbmc6d3Jvbmc=", f"Token {TOKEN}"]
)
def test_no_route_answers_without_the_right_token(authorization: str) -> None:
    with HttpQueueServer(token=TOKEN) as server:
        server.new_queue("q").push("x")
        for method, path in PATHS:
            if path == "/healthz":
                continue
            status, body, _ = ask(
                server, method, path, {"Authorization": authorization} if authorization else {}
            )
            assert status == 401, (method, path)
            assert TOKEN.encode() not in body


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}]
)
def test_a_foreign_host_or_origin_is_refused_on_every_route(headers: dict[str, str]) -> None:
    with HttpQueueServer(token=TOKEN) as server:
        server.new_queue("q")
        for method, path in [*PATHS, ("GET", "/nowhere"), ("PATCH", "/"), ("OPTIONS", "/queues")]:
            status, _, _ = ask(server, method, path, {**headers, "Authorization": f"Bearer {TOKEN}"})
            assert status == (200 if path == "/healthz" else 403), (method, path)


def test_both_ways_to_show_the_token_are_taken() -> None:
    import base64

    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    with HttpQueueServer(token=TOKEN) as server:
        for authorization in (f"Bearer {TOKEN}", f"Basic {basic}"):
            status, body, headers = ask(server, "GET", "/", {"Authorization": authorization})
            assert status == 200
            assert b"<title>Queues - Fray</title>" in body
            assert headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert "unsafe" not in headers["Content-Security-Policy"]


def test_a_token_is_wanted_beyond_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_QUEUE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ValueError, match="without a token"):
            HttpQueueServer(host)
    with HttpQueueServer("0.0.0.0", token=TOKEN) as server:
        port = server.url.rpartition(":")[2]
        with HttpQueue[str](f"http://127.0.0.1:{port}", "q", TOKEN, create=True) as queue:
            queue.push("x")


def test_a_server_for_other_machines_is_reached_by_loopback_names_and_no_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "worker-1.cluster.example")
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-1")
    with HttpQueueServer("0.0.0.0", token=TOKEN) as server:
        port = server.url.rpartition(":")[2]
        with HttpQueue[str](f"http://localhost:{port}", "q", TOKEN, create=True) as queue:
            queue.push("x")
            address = connections_of(queue).address
            address._headers = address._headers.replace("localhost", "evil.example")
            with pytest.raises(ForeignHostError, match=r"evil\.example.*--allow-host"):
                queue.push("y")


def test_a_wrong_token_is_a_clear_error_that_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpQueueServer(token=TOKEN) as server:
        server.new_queue("q")
        queue: HttpQueue[str] = HttpQueue(server.url, "q", "wrong-token")
        with pytest.raises(TokenError) as caught:
            queue.push("x")
        assert "wrong-token" not in f"{caught.value!r} {queue!r}"
        monkeypatch.setenv("FRAY_QUEUE_TOKEN", TOKEN)
        HttpQueue[str](server.url, "q").push("x")
        for bad in ("", "two words", "line\nbreak", "\N{SNOWMAN}"):
            with pytest.raises(ValueError, match="printable ASCII"):
                HttpQueue(server.url, "q", bad)
        with pytest.raises(ValueError, match="in a URL"):
            HttpQueue(server.url.replace("://", f"://x:{TOKEN}@"), "q")


BODIES: list[tuple[str, bytes]] = [
    ("push", b""),
    ("push", b"FRQ1"),
    ("push", b"\x80\x04K\x01."),
    ("push", b"FRQ1" + b"\xff" * 8),
    ("pop", b"{"),
    ("pop", b"[]"),
    ("pop", b'{"n": 0}'),
    ("pop", b'{"n": "1"}'),
    ("pop", b'{"lease_timeout": -1}'),
    ("pop", b'{"lease_timeout": 1e999}'),
    ("pop", b'{"lease_timeout": 1%s}' % (b"0" * 400)),
    ("pop", b'{"wait": 1%s}' % (b"0" * 400)),
    ("release", b'{"item_id": "a", "lease_id": "b", "delay": 1%s}' % (b"0" * 400)),
    ("extend", b'{"item_id": "a", "lease_id": "b", "lease_timeout": 1%s}' % (b"0" * 400)),
    ("pop", b'{"surprise": 1}'),
    ("pop", b"[" * 100_000),
    ("pop", b"\xff\xfe"),
    ("done", b"{}"),
    ("done", b'{"leases": [1]}'),
    ("done", b'{"leases": [["a"]]}'),
    ("release", b"{}"),
    ("release", b'{"item_id": 1, "lease_id": 2}'),
    ("extend", b'{"item_id": "a", "lease_id": "b"}'),
    ("requeue", b'{"item_ids": "all"}'),
    ("purge", b'{"item_ids": 3, "dead": true}'),
    ("purge", b'{"item_ids": ["one"]}'),
    ("purge", b'{"item_ids": [], "dead": false}'),
    ("purge", b'{"dead": "no"}'),
    ("purge", b'{"dead": 0}'),
]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(("verb", "body"), BODIES)
def test_a_malformed_body_is_a_400_and_changes_nothing(verb: str, body: bytes) -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        queue.push("x")
        status, answer, _ = ask(server, "POST", f"/queues/q/{verb}", body=body)
        assert status == 400, answer
        assert b"Traceback" not in answer
        assert (queue.size(), queue.pending()) == (1, 1)


@pytest.mark.parametrize(
    "header", ["x", "/1", "a/", "a/b", "a/-1", f"{'a' * 65}/1", "a/" + "9" * 16, "\xe9/1"]
)
def test_a_malformed_request_number_is_a_400(header: str) -> None:
    with HttpQueueServer() as server:
        server.new_queue("q")
        status, _, _ = ask(
            server, "POST", "/queues/q/pop", {"Fray-Request": header.encode().decode("latin-1")}, b"{}"
        )
        assert status == 400


def test_a_request_that_comes_after_its_successor_is_not_done() -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        queue.push_many("ab")
        assert ask(server, "POST", "/queues/q/pop", {"Fray-Request": "line/2"}, b"{}")[0] == 200
        assert ask(server, "POST", "/queues/q/pop", {"Fray-Request": "line/1"}, b"{}")[0] == 409
        assert queue.pending() == 1


@pytest.mark.parametrize("stored", [False, True])
def test_a_request_that_comes_after_a_successor_which_was_refused_is_not_done_again(
    stored: bool, tmp_path: Path
) -> None:
    body = pack([{"id": "one"}], [pickle.dumps("x")])
    lost = b'{"item_id": "one", "lease_id": "1.0"}'
    with HttpQueueServer(store=tmp_path if stored else None) as server:
        queue = server.new_queue("q")
        for _ in range(2):
            assert ask(server, "POST", "/queues/q/push", {"Fray-Request": "line/1"}, body)[0] == 200
        for _ in range(2):
            assert ask(server, "POST", "/queues/q/release", {"Fray-Request": "line/2"}, lost)[0] == 409
        assert ask(server, "POST", "/queues/q/push", {"Fray-Request": "line/1"}, body)[0] == 409
        assert queue.size() == 1
        queue.close()


def test_a_request_that_failed_is_done_when_it_is_repeated() -> None:
    with HttpQueueServer() as server:
        server.new_queue("other")
        assert ask(server, "POST", "/queues/q/pop", {"Fray-Request": "line/1"}, b"{}")[0] == 404
        server.new_queue("q").push("x")
        assert ask(server, "POST", "/queues/q/pop", {"Fray-Request": "line/1"}, b"{}")[0] == 200
        assert server.new_queue("q").pending() == 0


def test_a_slow_body_is_not_waited_for() -> None:
    with HttpQueueServer(limits=Limits(body_seconds=0.2)) as server:
        server.new_queue("q")
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(
                f"POST /queues/q/push HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9\r\n"
                "Authorization: Bearer of-the-tests\r\n\r\n".encode()
            )
            assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_bodies_that_are_read_at_once_have_a_common_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1024 if name == "SC_PHYS_PAGES" else real(name))
    limits = Limits(item_bytes=1 << 20, total_bytes=1 << 30)
    with HttpQueueServer(limits=limits) as server, server.new_queue("q") as queue, ExitStack() as slow:
        address = server.url.removeprefix("http://")
        host, port = address.split(":")
        head = f"POST /queues/q/push HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer of-the-tests\r\n"

        def begin() -> socket.socket:
            connection = slow.enter_context(socket.create_connection((host, int(port)), timeout=20))
            connection.sendall(f"{head}Content-Length: {limits.body_bytes}\r\n\r\nx".encode())
            return connection

        three = [begin() for _ in range(3)]
        answered = readable([each.fileno() for each in three], 20.0)
        (refused,) = [each for each in three if each.fileno() in answered]
        answer = refused.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"\r\nRetry-After: 1\r\n" in answer
        queue.push("small items have room")
        with ThreadPoolExecutor(1) as pool:
            large = pool.submit(queue.push, "x" * 1_000_000)
            for each in three:
                each.close()
            large.result(60)  # the client tried again
        assert queue.size() == 2


def test_bodies_count_until_what_they_hold_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, stored = os.sysconf, threading.Event()
    monkeypatch.setattr(os, "sysconf", lambda name: 1024 if name == "SC_PHYS_PAGES" else real(name))
    limits = Limits(total_bytes=1 << 30)
    with HttpQueueServer(limits=limits, store=tmp_path) as server, server.new_queue("q") as queue:

        def slow_flush(descriptor: int) -> None:
            assert stored.wait(60)
            os.fdatasync(descriptor)

        monkeypatch.setattr(sqlite_connection, "_fdatasync", slow_flush)
        item = bytes(limits.body_bytes * 9 // 10 - 1000)

        def push(number: int) -> int:
            return ask(server, "POST", "/queues/q/push", body=pack([{"id": str(number)}], [item]))[0]

        with ThreadPoolExecutor(3) as pool:
            three = [pool.submit(push, number) for number in range(3)]
            try:
                over, _ = wait(three, 30, FIRST_COMPLETED)
                assert [each.result() for each in over] == [503]
                small = gzip.compress(pack([{"id": "small"}], [bytes(100)]))
                assert ask(server, "POST", "/queues/q/push", {"Content-Encoding": "gzip"}, small)[0] == 503
            finally:
                stored.set()
            assert sorted(each.result() for each in three) == [200, 200, 503]
            assert ask(server, "POST", "/queues/q/push", {"Content-Encoding": "gzip"}, small)[0] == 200
        assert queue.size() == 3


def test_a_body_that_takes_too_long_is_beyond_a_limit_which_the_error_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with HttpQueueServer(limits=Limits(body_seconds=0.2)) as server:
        queue = server.new_queue("q")
        real = connections_of(queue).address.head

        def promise_more(*args: str, length: int = 0, **more: str) -> bytes:
            head: bytes = real(*args, length=length + 9, **more)
            return head

        monkeypatch.setattr(connections_of(queue).address, "head", promise_more)
        with pytest.raises(LimitError, match=r"within 0\.2 s.*--body-seconds"):
            Wire(queue).send_items([[b"x"]])
        queue.close()


def test_a_failure_of_the_server_shows_no_traceback(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from fray_queue.testing import http_api as _api

    def fail(*_: object) -> None:
        raise RuntimeError("inner secret")

    monkeypatch.setattr(_api, "metrics_text", fail)
    with HttpQueueServer() as server:
        status, answer, _ = ask(server, "GET", "/metrics")
    assert status == 500
    assert b"secret" not in answer
    assert "inner secret" in caplog.text


def test_metrics_are_what_prometheus_reads() -> None:
    clock = ManualClock()
    with HttpQueueServer(clock=clock) as server:
        queue, other = server.new_queue("q", max_attempts=1), server.new_queue("Other.queue-2_x")
        queue.push_many(range(5))
        clock.advance(4.0)
        queue.done(queue.pop())  # type: ignore[arg-type]
        queue.release(queue.pop())  # type: ignore[arg-type]
        assert queue.pop() is not None
        other.push("x")
        status, text, headers = ask(server, "GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert all(family.documentation for family in families.values())
    found = {
        (sample.name, sample.labels["queue"]): sample.value
        for family in families.values()
        for sample in family.samples
    }
    kinds = {sample.name: family.type for family in families.values() for sample in family.samples}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        "fray_queue_pushed_total",
        "fray_queue_popped_total",
        "fray_queue_done_total",
        "fray_queue_wait_seconds_total",
    }
    assert {kind for name, kind in kinds.items() if not name.endswith("_total")} == {"gauge"}
    expected = {
        "pending": 2,
        "in_flight": 1,
        "dead": 1,
        "pushed_total": 5,
        "popped_total": 3,
        "done_total": 1,
    }
    assert {name: found[f"fray_queue_{name}", "q"] for name in expected} == expected
    assert found["fray_queue_oldest_seconds", "q"] == pytest.approx(4.0)
    assert found["fray_queue_wait_seconds_total", "q"] == pytest.approx(3 * 4.0)
    assert found["fray_queue_pending", "Other.queue-2_x"] == 1


def test_every_route_refuses_in_the_same_words() -> None:
    much = gzip.compress(b" " * (10 << 20))
    late: list[Future[tuple[int, bytes, Any]]] = []
    limits = Limits(body_seconds=3.0, item_bytes=1000)  # one that is there takes a while on a busy machine
    with HttpQueueServer(token=TOKEN, limits=limits) as server, ThreadPoolExecutor(20) as pool:
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert ask(server, "PUT", "/queues/q", right | {"Fray-Request": "line/2"})[0] == 200
        for route in ROUTES:
            expected: list[tuple[int, dict[str, str], bytes | None]] = []
            if route.path != "/healthz":
                expected += [(401, {"Authorization": ""}, None), (403, {"Host": "evil.example"}, None)]
            if route.takes:
                expected += [(408, {"Content-Length": "9"}, None), (413, {"Content-Encoding": "gzip"}, much)]
                expected += [(400, {}, b"nonsense")]
            if route.changes:
                expected += [(400, {"Fray-Request": "x"}, None), (409, {"Fray-Request": "line/1"}, None)]
            for status, headers, body in expected:
                path = route.path.replace("{name}", "q")
                if status == 408:  # all of them wait at one time
                    late.append(pool.submit(ask, server, route.method, path, right | headers, body))
                    continue
                assert ask(server, route.method, path, right | headers, body)[0] == status, (
                    route.path,
                    status,
                )
        assert {answer.result()[0] for answer in late} == {408}


def certificate_of(names: str, folder: Path) -> tuple[str, str]:
    """Make a certificate of these names that signs itself; return its file and that of its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", f"subjectAltName={names}", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(certificate), str(key)


def test_a_server_for_other_machines_has_a_certificate_of_its_name_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = certificate_of("DNS:localhost", tmp_path)
    command = [sys.executable, "-m", "fray", "queue", "serve", "--host", "0.0.0.0"]
    command += ["--queue", "requests", "--max-attempts", "3", "--certificate", *certificate]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip().rpartition(":")[2]
            url, trusting = f"https://localhost:{port}/requests", ("--ca-file", certificate[0])
            assert main(["queue", "push", url, "a", *trusting]) == 0
            assert main(["queue", "create", url, "--max-attempts", "3", *trusting]) == 0
        finally:
            process.terminate()
            assert process.wait(20) == 0
    for wrong in (["--queue", "a..b"], ["--queue", "q", "--max-attempts", "0"]):
        assert main(["queue", "serve", *wrong]) in (1, 2)
        assert "a..b" in (error := capsys.readouterr().err) or "max_attempts" in error


def test_tls_by_certificate_files(tmp_path: Path) -> None:
    certificate, key = certificate_of("IP:127.0.0.1", tmp_path)
    with HttpQueueServer(certificate=(certificate, key)) as server:
        assert server.url.startswith("https://")
        queue = server.new_queue("q")
        queue.push("x")
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            HttpQueue[str](server.url, "q").push("y")
        assert queue.size() == 1
        trusting = ("--ca-file", str(certificate))
        assert main(["queue", "push", f"{server.url}/q", "y", *trusting]) == 0
        assert main(["queue", "list", server.url, *trusting]) == 0
        assert main(["queue", "stats", f"{server.url}/q", *trusting]) == 0
        assert main(["queue", "list", server.url]) == 1
        assert queue.size() == 2
        asyncio.run(_exchange_over_tls(queue, HttpQueue(server.url, "q", server.token)))


async def _exchange_over_tls(queue: HttpQueue[Any], stranger: HttpQueue[Any]) -> None:
    await queue.aio.push(b"x" * 3_000_000)
    assert [len(lease.item) for lease in await queue.aio.pop_many(3)] == [1, 1, 3_000_000]
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        await stranger.aio.size()
