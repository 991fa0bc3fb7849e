"""The token that a server makes, tokens with roles and queues, and what a log says of requests."""

import base64
import http.client
import json
import logging
import os
import pickle
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fray.queue import HttpQueue, HttpQueueServer, open_queue
from fray.testing.command_line import main
from fray.testing.queue import ManualClock
from fray_queue import TokenError


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_QUEUE_TOKEN", raising=False)


def ask(server: HttpQueueServer, method: str, path: str, token: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.url.partition("://")[2], timeout=20)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request(method, path, b"{}" if method in ("POST", "PUT") else None, headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def kept() -> list[Path]:
    return sorted(Path(os.environ["FRAY_STATE_DIR"]).glob("queue-servers/*"))


# --- the token that a server makes ---


def test_a_server_without_a_token_makes_one_that_its_user_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpQueueServer() as server:
        server.new_queue("q").push("x")
        (path,) = kept()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text().strip() == server.token
        assert open_queue(f"{server.url}/q").size() == 1
        assert ask(server, "GET", "/queues/q")[0] == 401
        assert ask(server, "GET", "/queues")[0] == 401
        assert ask(server, "GET", "/healthz")[0] == 200
        with monkeypatch.context() as patch:
            patch.setenv("FRAY_STATE_DIR", "/nonexistent")  # as another user
            with pytest.raises(TokenError):
                open_queue(f"{server.url}/q").size()
    assert kept() == []


def test_a_file_that_others_can_read_is_not_used() -> None:
    with HttpQueueServer() as server:
        server.new_queue("q")
        (path,) = kept()
        path.chmod(0o644)
        with pytest.raises(TokenError):
            open_queue(f"{server.url}/q").size()


def test_a_restart_on_the_same_port_keeps_the_token(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with HttpQueueServer(port=port, store=tmp_path / "store") as server:
        queue = server.new_queue("q")
        queue.push("x")
    with HttpQueueServer(port=port, store=tmp_path / "store"):
        assert queue.size() == 1


def test_a_queue_that_is_opened_before_its_server_starts_finds_the_token(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    queue = open_queue(f"http://127.0.0.1:{port}/q?create=true")
    copy = pickle.loads(pickle.dumps(queue))
    pusher = threading.Thread(target=queue.push, args=["x"], daemon=True)
    pusher.start()  # its request is repeated until there is a server
    with HttpQueueServer(port=port):
        pusher.join(timeout=60)
        assert copy.size() == 1


def test_a_server_runs_where_its_token_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FRAY_STATE_DIR", "/dev/null/state")
    with HttpQueueServer() as server:
        server.new_queue("q").push("x")
        assert "new_queue hands on the token" in caplog.text
        assert server.token not in caplog.text


# --- tokens with roles and queues ---


class Tokens:
    """A file of tokens, made by the command line."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self._capsys = path, capsys

    def add(self, name: str, *options: str) -> str:
        assert main(["queue", "tokens", "add", str(self.path), name, *options]) == 0
        return self._capsys.readouterr().out.strip()

    def run(self, *arguments: str) -> str:
        assert main(["queue", "tokens", arguments[0], str(self.path), *arguments[1:]]) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tokens:
    return Tokens(tmp_path / "tokens", capsys)


REQUESTS = {
    "push": [("POST", "/queues/a/push")],
    "take": [
        ("POST", "/queues/a/pop"),
        ("POST", "/queues/a/done"),
        ("POST", "/queues/a/release"),
        ("POST", "/queues/a/extend"),
    ],
    "read": [("GET", "/queues/a/dead"), ("GET", "/queues/a/dead/records")],
    "admin": [
        ("PUT", "/queues/a"),
        ("POST", "/queues/a/requeue"),
        ("POST", "/queues/a/purge"),
        ("DELETE", "/queues/a"),
    ],
}


@pytest.mark.parametrize("role", list(REQUESTS))
def test_a_role_allows_what_it_says(tokens: Tokens, role: str) -> None:
    token = tokens.add("one", "--role", role, "--queue", "a")
    with HttpQueueServer(token="all", tokens=tokens.path) as server:
        server.new_queue("a")
        assert ask(server, "GET", "/queues/a", token)[0] == 200
        for of_role, requests in REQUESTS.items():
            for method, path in requests:
                status, _ = ask(server, method, path, token)
                assert (status != 403) == (role in (of_role, "admin")), (method, path)
        assert (ask(server, "GET", "/queues/a/peek", token)[0] != 403) == (role != "push")


def test_a_token_of_one_queue_tells_nothing_of_others(tokens: Tokens) -> None:
    token = tokens.add("one", "--role", "admin", "--queue", "mine", "--queue", "scret")
    with HttpQueueServer(token="all", tokens=tokens.path) as server:
        server.new_queue("mine")
        server.new_queue("secret")
        for path in ("/", "/queues", "/metrics", "/queues/secret", "/queues/nothing", "/nothing"):
            status, body = ask(server, "GET", path, token)
            assert status == 403
            assert "secret" not in body
        status, body = ask(server, "GET", "/queues/scret", token)
        assert status == 404
        assert "secret" not in body
        assert "secret" in ask(server, "GET", "/queues/scret", "all")[1]


def test_a_pusher_and_a_taker_work_with_what_they_may(tokens: Tokens) -> None:
    pusher = tokens.add("pusher", "--role", "push", "--queue", "q")
    taker = tokens.add("taker", "--role", "take")
    with HttpQueueServer(tokens=tokens.path) as server:
        server.new_queue("q")
        HttpQueue[int](server.url, "q", pusher).push_many(range(3000))
        queue: HttpQueue[int] = HttpQueue(server.url, "q", taker)
        lease = queue.pop()
        assert lease is not None
        queue.done(queue.extend(lease, 30))
        with pytest.raises(TokenError, match="it is for take of all queues"):
            queue.push(1)
        with pytest.raises(TokenError):
            HttpQueue[int](server.url, "q", pusher).pop()


def test_a_pusher_of_one_queue_reads_no_answer_of_another(tokens: Tokens) -> None:
    """Ids that were made up: the rows of all queues are in one table."""
    pusher = tokens.add("pusher", "--role", "push", "--queue", "a")
    clock = ManualClock()
    with HttpQueueServer(token="all", tokens=tokens.path, clock=clock) as server:
        server.new_queue("a")
        mine, other = HttpQueue[str](server.url, "a", pusher), server.new_queue("b")
        tag = mine.push("x", reply=True).item_id.partition("-")[0]
        ticket = other.push("question", reply=True)
        lease = other.pop()
        assert lease is not None
        other.done(lease, result="secret")
        forged = [f"{tag}-{(beyond << 44) + 1}" for beyond in range(5)][1:]
        assert {reply.outcome for reply in mine.fetch_replies([*forged, f"{tag}-0"]).values()} == {"gone"}
        clock.advance(120.0)  # an answer that was fetched would be gone
        assert ticket.result(timeout=10) == "secret"
        mine.close()


def test_a_removed_token_is_good_for_nothing_at_once(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    first = tokens.add("first", "--role", "read")
    with HttpQueueServer(tokens=tokens.path) as server:
        second = tokens.add("second", "--role", "read", "--queue", "q")
        assert ask(server, "GET", "/queues", first)[0] == 200
        assert ask(server, "GET", "/queues/q", second)[0] == 404
        assert tokens.run("list") == "first\tread\tall queues\nsecond\tread\tq\n"
        tokens.run("remove", "first")
        assert ask(server, "GET", "/queues", first)[0] == 401
        assert ask(server, "GET", "/queues/q", second)[0] == 404
        tokens.path.write_text("nonsense")
        for _ in range(2):
            assert ask(server, "GET", "/queues/q", second)[0] == 401
        assert [record.message for record in caplog.records if "line 1 of" in record.message]
    text = tokens.path.read_text()
    assert first not in text
    assert second not in text
    with pytest.raises(ValueError, match="line 1 of"):
        HttpQueueServer(tokens=tokens.path).start()


def test_a_token_that_is_removed_while_the_server_starts_is_good_for_nothing(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tokens.add("one", "--role", "read")
    read = Path.read_text

    def read_then_removed(path: Path, *arguments: Any, **options: Any) -> str:
        text = read(path, *arguments, **options)
        monkeypatch.setattr(Path, "read_text", read)
        tokens.run("remove", "one")
        return text

    server = HttpQueueServer(token="all", tokens=tokens.path)
    monkeypatch.setattr(Path, "read_text", read_then_removed)
    with server:
        assert ask(server, "GET", "/queues", token)[0] == 401


def test_a_file_of_tokens_stays_readable_for_the_server(tokens: Tokens) -> None:
    tokens.add("first", "--role", "read")
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    tokens.path.chmod(0o640)
    link = tokens.path.with_name("link")
    link.symlink_to(tokens.path)
    assert main(["queue", "tokens", "add", str(link), "second", "--role", "read"]) == 0
    assert link.is_symlink()
    assert tokens.path.stat().st_mode & 0o777 == 0o640
    tokens.run("remove", "first")
    assert tokens.path.stat().st_mode & 0o777 == 0o640


def test_tokens_that_are_added_at_once_are_all_kept(tokens: Tokens) -> None:
    tokens.add("first", "--role", "read")
    together = threading.Barrier(8)

    def add(number: int) -> int:
        together.wait()
        return main(["queue", "tokens", "add", str(tokens.path), f"n{number}", "--role", "push"])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(add, range(8))) == [0] * 8
    assert len(tokens.path.read_text().splitlines()) == 9


@pytest.mark.parametrize(
    "row", [{"roles": ["king"], "sha256": "x"}, {"roles": [], "sha256": "x"}, {"roles": ["read"]}, []]
)
def test_a_file_of_tokens_that_makes_no_sense_is_refused(tmp_path: Path, row: object) -> None:
    (tmp_path / "tokens").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"line 1 of .*tokens"):
        HttpQueueServer(tokens=tmp_path / "tokens").start()


# --- the log ---

SECRET = "c2VjcmV0LXRva2Vu"
MALFORMED = [
    b"GET /queues HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + SECRET.encode() + b"\x00\r\n\r\n",
    b"GET /queues HTTP/9.9\r\nAuthorization: Bearer " + SECRET.encode() + b"\r\n\r\n",
    b"GET /queues HTTP/1.1\r\nAuthorization Bearer " + SECRET.encode() + b"\r\n\r\n",
    b"POST /queues HTTP/1.1\r\nHost: x\r\nContent-Length: " + SECRET.encode() + b"\r\n\r\n",
    base64.b64decode(SECRET) + SECRET.encode() + b"\r\n\r\n",
]


@pytest.mark.parametrize("request_bytes", MALFORMED, ids=["value", "version", "name", "length", "no HTTP"])
def test_a_malformed_request_leaves_one_line_and_no_value_of_a_header(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with HttpQueueServer() as server:
        address = server.url.rpartition(":")[2]
        with socket.create_connection(("127.0.0.1", int(address)), 20) as connection:
            connection.sendall(request_bytes)
            answer = b""
            while data := connection.recv(4096):
                answer += data
    assert b" 400 " in answer.splitlines()[0]
    assert len(caplog.text.splitlines()) == 1
    assert "malformed request from 127.0.0.1" in caplog.text
    assert SECRET not in caplog.text + answer.decode()
