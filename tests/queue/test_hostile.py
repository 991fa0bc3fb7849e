"""Whatever is sent to a server: no access, no code run, no 5xx, no inside shown, no hang, no harm."""

import contextlib
import gc
import gzip
import json
import logging
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from queue_attacker import (
    LIMITS,
    METHODS,
    RIGHT,
    TOKEN,
    Attacker,
    Bomb,
    besieged,
    paths,
    request,
    sealed,
    trickle,
)

from fray.backend import HostCheck
from fray_queue.testing import RECORDS, ROUTES, pack

DRAWN = settings(
    max_examples=200,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # every example is an input; a failing one is short enough
    suppress_health_check=list(HealthCheck),
)
TAKING = [(route.method, route.path.replace("{name}", "victim"), route) for route in ROUTES if route.takes]
OPEN = "/healthz"
# An empty object, and more blanks than a body may have: small enough to come in one piece with its head.
BOMBS = [gzip.compress(b"{%s}" % (b" " * size)) for size in (LIMITS.body_bytes, 20 * LIMITS.body_bytes)]
TRIES = 5  # to send a head within the server's `body_seconds`
_tried: list[int] = []


@pytest.fixture
def attacker(
    tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[Attacker]:
    with besieged(tmp_path) as attacker:
        yield attacker
    request.node.user_properties.append(("inputs", attacker.tried))
    _tried.append(attacker.tried)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, "what a client sends is no fault of the server's"


@pytest.fixture(scope="module", autouse=True)
def total() -> Iterator[None]:
    """Tell how many inputs were tried; `-s` shows it."""
    yield
    print(f"\nhostile inputs tried over HTTP: {sum(_tried)}")


def refused(status: int | None) -> bool:
    return status is None or 400 <= status < 500


@pytest.mark.parametrize(
    "headers",
    [
        {},
        *({"Authorization": value} for value in ("", "Bearer", "Bearer ", "Bearer wrong", f"Token {TOKEN}")),
        *(
            {"Authorization": value}
            for value in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Basic !", TOKEN)
        ),
        {"Authorization": f"Bearer {TOKEN}\x00"},
        {"Authorization": "Bearer \N{PILE OF POO}"},
        {"Authorization": "Bearer " + "x" * 4000},
        {"Cookie": f"token={TOKEN}", "X-Forwarded-For": "127.0.0.1", "X-Original-URL": OPEN},
    ],
    ids=lambda headers: ascii(headers)[:50],
)
def test_no_route_and_method_gives_anything_without_the_token(
    attacker: Attacker, headers: dict[str, str]
) -> None:
    for path in [*paths("kept"), "/nowhere", f"{OPEN}/../queues", "//queues", f"/queues?token={TOKEN}"]:
        for method in METHODS:
            status = attacker.send(request(method, path, headers))
            assert refused(status) or path == OPEN, (method, path, status)


@pytest.mark.parametrize(
    "headers",
    [
        *(
            {"Host": host}
            for host in ("evil.example", "", "localhost.evil.example", "[", "[::1", "a:b:c", "@")
        ),
        *(
            {"Host": host}
            for host in ("\N{PILE OF POO}", "x" * 4000, "localhost@evil.example", "127.1.1.1.1")
        ),
        *({"Origin": origin} for origin in ("http://evil.example", "null", "", "http://[", "file://", "[")),
        {"Origin": "http://localhost.evil.example"},
    ],
    ids=lambda headers: ascii(headers)[:50],
)
def test_a_foreign_host_or_origin_gets_nothing_even_with_the_token(
    attacker: Attacker, headers: dict[str, str]
) -> None:
    for path in paths("kept"):
        for method in METHODS:
            status = attacker.send(request(method, path, RIGHT | headers))
            assert refused(status) or path == OPEN, (method, path, status)


NAMES = [
    *("..", "../", "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%2e%2e%2fkept", "..\\kept", "a/b", "a%2Fb"),
    *("%00", "kept%00", "\x00", "kept\x00", "%F0%9F%92%A9", "\N{PILE OF POO}", "%", "%zz", "%c3%28", "%ff"),
    *("a" * 129, "a" * 4096, "%0d%0aX:%20y", "a b", "%20", ";", "?", "#", "~", "*", "$(id)", "%25", "-%0a"),
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_no_name_leads_anywhere(attacker: Attacker, name: str) -> None:
    for route in ROUTES:
        if "{name}" not in route.path:
            continue
        target = route.path.replace("{name}", name)
        assert refused(attacker.send(request(route.method, target, body=b"{}"))), target
        status = attacker.send(request(route.method, target, RIGHT, b"{}"))
        # "?" and "#" end a path, ".." leads up in it: what may be read there, its owner may read.
        assert refused(status) or route.method == "GET", (route.method, target, status)


@pytest.mark.parametrize(("method", "path", "route"), TAKING, ids=lambda value: str(value)[:40])
def test_bodies_that_are_too_much_or_too_little(
    attacker: Attacker, method: str, path: str, route: Any
) -> None:
    much = LIMITS.body_bytes + 1
    chunked = {"Transfer-Encoding": "chunked"}
    for headers in (RIGHT, {}):
        for length in (str(much), "9" * 30, "-1", "+5", "0x10", "1, 2", "", "\N{SUPERSCRIPT TWO}"):
            hostile = request(method, path, headers | {"Content-Length": length}, b"{}")
            assert refused(attacker.send(hostile, hang_up=True)), length
        assert refused(attacker.send(request(method, path, headers, b" " * much)))
        garbled = (("gzip", b"{}"), ("deflate", b"\xff" * 99), ("br", b"{}"))
        for encoding, data in (*(("gzip", bomb) for bomb in BOMBS), *garbled):
            assert refused(attacker.send(request(method, path, headers, data, Content_Encoding=encoding))), (
                encoding
            )
        for chunks in (b"%x\r\n" % much + b" " * much, b"zz\r\n", b"-1\r\n", b"f" * 40 + b"\r\n", b"5\r\n{}"):
            raw = request(method, path, headers | chunked).replace(b"Content-Length: 0\r\n", b"") + chunks
            assert refused(attacker.send(raw, hang_up=True)), chunks[:20]
        assert refused(attacker.send(request(method, path, headers, b"{}", Big="x" * 100_000)))


def test_heads_that_are_no_heads(attacker: Attacker) -> None:
    smuggled = request("DELETE", "/queues/kept", RIGHT)
    both = request("POST", "/queues/victim/pop", {}, b"0\r\n\r\n" + smuggled, Transfer_Encoding="chunked")
    many = "".join(f"H{number}: x\r\n" for number in range(20_000)).encode()
    for head in (
        *(b"\r\n" * 1000, b"\x00" * 1000, b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        *(
            b"GET\r\n\r\n",
            b"GET /queues\r\n\r\n",
            b"GET /queues HTTP/9.9\r\n\r\n",
            b"GET /queues HTTP/1.1\n\n",
        ),
        *(
            b"A" * 100_000,
            b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
            b"GET /queues HTTP/1.1\r\n : \r\n\r\n",
        ),
        b"GET http://evil.example/queues HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /queues HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /queues HTTP/1.1\r\nHost: localhost\r\nX: a\r\n\tAuthorization: b\r\n\r\n",
        b"GET /queues HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n",
        *(both, request("POST", "/queues/victim/pop", {}, smuggled, Content_length="0")),
    ):
        assert refused(attacker.send(head, hang_up=True)), head[:60]


def test_bodies_that_stop_or_trickle_hold_nobody_up(attacker: Attacker) -> None:
    with contextlib.ExitStack() as stack:
        endless = b"GET /queues HTTP/1.1\r\nHost: loc"  # a head, held open all the while
        half = [stack.enter_context(attacker.begin(endless)) for _ in range(20)]
        for hang_up in (True, False):
            for method, path, _ in TAKING:
                head = request(method, path, RIGHT | {"Content-Length": "400"}, b"{")
                assert refused(attacker.send(head, hang_up=hang_up)), path
        heads = [
            (path, request(method, path, RIGHT | {"Content-Length": "400"}, b"{"))
            for method, path, _ in TAKING
        ]
        slow = [(stack.enter_context(attacker.begin(head)), path, head) for path, head in heads]
        for connection, path, head in slow:
            status = trickle(attacker, connection)
            for _ in range(TRIES):
                if status is not None:
                    break
                # Its head took too long on a busy machine, and a connection without a head has no answer.
                status = trickle(attacker, stack.enter_context(attacker.begin(head)))
            assert status == 408, path
        attacker.tried += len(half) + len(slow)
        assert attacker.send(request("GET", "/queues", RIGHT)) == 200


def test_clients_that_begin_no_request_are_hung_up_on(attacker: Attacker) -> None:
    begun = request("GET", "/queues", RIGHT)[:-2]
    with contextlib.ExitStack() as stack:
        second, idle = (stack.enter_context(served_once(attacker)) for _ in range(2))
        second.sendall(begun)  # a head after a good request
        partial = stack.enter_context(attacker.begin(begun))
        silent, dripping = (stack.enter_context(attacker.connect()) for _ in range(2))
        with pytest.raises(ConnectionError):
            drip(dripping)
        for connection in (silent, partial, second):
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
        idle.sendall(request("GET", "/queues", RIGHT))  # it was quiet for as long
        assert attacker.answer(idle) == 200


def served_once(attacker: Attacker) -> socket.socket:
    """Return a connection that had a good answer."""
    for _ in range(TRIES):
        connection = attacker.begin(request("GET", OPEN))
        status = attacker.answer(connection)
        if status is not None:  # else its head took too long on a busy machine
            assert status == 200
            return connection
        connection.close()
    raise AssertionError("the server hangs up on good requests")


def drip(connection: socket.socket) -> None:
    """Send a head that never ends, a byte every so often."""
    connection.sendall(b"GET /queues HTTP/1.1\r\nX: ")
    connection.settimeout(0.02)
    for _ in range(400):
        connection.sendall(b"x")
        try:
            if not connection.recv(1):
                raise ConnectionResetError
        except TimeoutError:
            continue


def test_a_host_is_a_name_and_a_port(attacker: Attacker) -> None:
    for host in (
        "x@localhost",
        "localhost/a",
        "localhost?a",
        "localhost#a",
        "localhost:",
        "localhost:1x",
        "a,localhost",
    ):
        assert attacker.send(request("GET", "/queues", RIGHT | {"Host": host})) in (400, 403), host
    for host in ("LOCALHOST", "127.0.0.1:1", "[::1]:8788"):
        assert attacker.send(request("GET", "/queues", RIGHT | {"Host": host})) == 200, host
    for port in range(300):
        attacker.send(request("GET", "/queues", {"Host": f"localhost:{port}"}))
    checks = [each for each in gc.get_objects() if isinstance(each, HostCheck)]
    assert checks
    assert all(each.kept <= 100 for each in checks)


def test_pickles_are_never_loaded(attacker: Attacker, tmp_path_factory: pytest.TempPathFactory) -> None:
    proof = tmp_path_factory.mktemp("proof") / "loaded"
    bombs = [pickle.dumps(Bomb(proof), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for bomb in bombs:
        for method, path, _ in TAKING:
            for headers in (RIGHT, RIGHT | {"Content-Type": "application/x-python-pickle"}):
                assert refused(attacker.send(request(method, path, headers, bomb))), path
        text = bomb.decode("latin-1")
        item = pack([{"id": text[:100]}, {"id": f"bomb{bomb[1]}"}], [bomb, bomb])
        attacker.send(request("POST", "/queues/victim/push", RIGHT, item))
        for verb, body in (
            ("pop", {"n": 2}),
            ("requeue", {"item_ids": [text]}),
            ("done", {"leases": [[text] * 2]}),
        ):
            attacker.send(request("POST", f"/queues/victim/{verb}", RIGHT, json.dumps(body).encode()))
        attacker.send(request("GET", "/queues/victim/dead/records", RIGHT))
    assert not proof.exists()
    pickle.loads(bombs[0]).close()
    assert proof.exists(), "the bomb works, where it is loaded"


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([10**400, -(10**400), 1e308, 5e-324, 2**63, "\x00", "..", "\N{PILE OF POO}" * 1000])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(("method", "path", "route"), TAKING, ids=lambda value: str(value)[:40])
def test_values_of_any_type(attacker: Attacker, method: str, path: str, route: Any) -> None:
    fields = st.sampled_from([*route.fields, "surprise"])
    pairs = st.lists(st.lists(st.text(max_size=5) | SCALARS, min_size=1, max_size=3), max_size=3)

    @DRAWN
    @given(
        st.dictionaries(fields, VALUES | pairs) | VALUES, st.none() | st.text(st.characters(codec="latin-1"))
    )
    def attack(body: Any, slot: str | None) -> None:
        headers = (
            RIGHT if slot is None else RIGHT | {"Fray-Request": slot.strip().translate({10: 46, 13: 46})}
        )
        attacker.send(request(method, path, headers, json.dumps(body).encode()))

    attack()
    for body in (
        b"[" * 100_000,
        b'{"n":' * 50_000,
        b'{"n": ' + b"9" * 5000 + b"}",
        b"\xff\xfe{",
        b"{}{}",
        b"nul",
    ):
        assert refused(attacker.send(request(method, path, RIGHT, body))), body[:20]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("path", [path for _, path, route in TAKING if route.takes == RECORDS])
def test_records_of_any_shape(attacker: Attacker, path: str) -> None:
    good = pack([{"id": "a"}, {"id": "b"}], [b"one", b"two"])
    meta = st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "size", "crc", "x"), VALUES))

    @DRAWN
    @given(st.lists(meta | VALUES, min_size=1, max_size=3) | VALUES, st.binary(max_size=20))
    def say_anything(header: Any, payloads: bytes) -> None:
        attacker.send(request("POST", path, RIGHT, sealed(json.dumps(header).encode(), payloads)))

    @DRAWN
    @given(st.integers(0, len(good) - 1), st.integers(1, 255))
    def damage(position: int, change: int) -> None:
        body = bytearray(good)
        body[position] ^= change
        assert refused(attacker.send(request("POST", path, RIGHT, bytes(body))))
        assert refused(attacker.send(request("POST", path, RIGHT, good[:position])))
        assert refused(attacker.send(request("POST", path, RIGHT, good + bytes(body))))

    say_anything()
    damage()
    for header in (
        b"[" * 100_000,
        b"\xff",
        b"{",
        b'[{"id": "a", "size": -1, "crc": 0}]',
        b"[" + b"9" * 5000 + b"]",
    ):
        assert refused(attacker.send(request("POST", path, RIGHT, sealed(header, b"")))), header[:40]
