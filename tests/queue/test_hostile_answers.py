"""Whatever stands where a queue server was, a client of it gets an error that it can name."""

import json
import os
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from queue_proxy import SwallowingProxy

from fray import FrayError
from fray_queue import DamagedError, HttpQueue, HttpQueueServer

DRAWN = settings(
    max_examples=100 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
CODES = st.sampled_from(
    [
        "lease_expired",
        "full",
        "upgrade",
        "queue_not_found",
        "access",
        "foreign",
        "queue_exists",
        "limit",
        "http",
    ]
)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.just("max_size"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
REFUSALS = st.builds(
    lambda error, message, facts: json.dumps({"error": error, "message": message, "facts": facts}).encode(),
    CODES | VALUES,
    VALUES,
    st.lists(VALUES, max_size=3) | VALUES,
)
STATUSES = st.sampled_from([400, 401, 403, 404, 405, 409, 413, 418, 429, 500, 503, 507])


def test_refusals_of_any_shape() -> None:
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        server.new_queue("q")

        @DRAWN
        @example(404, b'{"error": "queue_not_found", "message": "", "facts": []}')
        @example(404, b'{"error": "queue_not_found", "message": "", "facts": [1, [2]]}')
        @example(409, b'{"error": ' * 3000)
        @given(STATUSES, REFUSALS | VALUES.map(json.dumps).map(str.encode) | st.binary(max_size=20))
        def refuse(status: int, body: bytes) -> None:
            head = b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
            proxy.reshape = lambda _: ([head + body], True)
            with HttpQueue[str](proxy.url, "q", timeout=0.001) as queue:
                for call in (queue.size, queue.pop, lambda: queue.push("x")):
                    with pytest.raises((FrayError, ValueError)) as refused:
                        call()
                    assert str(refused.value) or body

        refuse()


LOG_IN = b"<html>log in</html>"


@pytest.mark.parametrize(
    "head", [b"200 OK", b"204 No Content", b"301 Moved Permanently\r\nLocation: https://elsewhere/"]
)
def test_what_another_program_answers_with_success_is_no_success(head: bytes) -> None:
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        server.new_queue("q").push("x")
        lease = HttpQueue[str](server.url, "q").pop()
        assert lease is not None
        body = b"" if head.startswith(b"204") else LOG_IN
        proxy.reshape = lambda _: (
            [b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)],
            True,
        )
        with HttpQueue[str](proxy.url, "q", timeout=5) as queue:
            calls: dict[str, Callable[[], object]] = {
                "push": lambda: queue.push("x"),
                "push with options": lambda: queue.push("x", priority=1),
                "pop": queue.pop,
                "done": lambda: queue.done(lease),
                "release": lambda: queue.release(lease),
                "extend": lambda: queue.extend(lease, 1.0),
                "size": queue.size,
                "exists": queue.exists,
                "purge": queue.purge,
                "dead_letters": queue.dead_letters,
                "requeue_dead": queue.requeue_dead,
                "delete": queue.delete,
                "create": lambda: HttpQueue[str](proxy.url, "q", create=True).push("x"),
            }
            for name, call in calls.items():
                with pytest.raises((FrayError, ValueError), match=r"answer|address"):
                    pytest.fail(f"{name} returned {call()!r}")


def test_an_answer_in_json_of_another_program_stores_nothing() -> None:
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        server.new_queue("q")
        body = b'{"message": "forwarded"}'
        proxy.reshape = lambda _: (
            [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)],
            True,
        )
        with HttpQueue[str](proxy.url, "q") as queue, pytest.raises(DamagedError, match="forwarded"):
            queue.push("x")


def test_answers_of_any_bytes() -> None:
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        server.new_queue("q")

        @DRAWN
        @given(
            st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"HTTP/1.1 200 OK\r\n" + data)
        )
        def answer(data: bytes) -> None:
            proxy.reshape = lambda _: ([data], False)
            with HttpQueue[str](proxy.url, "q", timeout=0.05) as queue, suppress(FrayError, ValueError):
                queue.pop()

        answer()
