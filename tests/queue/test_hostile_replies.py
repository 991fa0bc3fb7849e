"""Whatever a Redis answers: a `redis:` queue takes it, or says in one error that it cannot be used."""

import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fray import FrayError
from fray.queue import open_queue

DRAWN = settings(
    max_examples=30 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TEXTS = st.binary(max_size=30) | st.sampled_from([b"OK", b"2:1", b"ok", b"\xff", b"NOSCRIPT x", b"9" * 400])
ERRORS = TEXTS.map(lambda text: b"-ERR " + text.translate(None, b"\r\n") + b"\r\n")
# What nobody writes: a client that waits for the rest of it is ended by its timeout.
BROKEN = st.sampled_from(
    [b"", b"?\r\n", b"*-7\r\n", b"$x\r\n", b":\r\n", b"+\r\n", b"\xff\xff\r\n", b"*1\r\n$3\r\nab"]
)
REPLIES = ERRORS | BROKEN


@contextmanager
def redis_that_says(reply: bytes) -> Iterator[int]:
    """A server that answers what clients ask of themselves, and each command with `reply`."""

    stopping = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(0.02)
            while not stopping.is_set():
                try:
                    data = self.request.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    return
                first = data.upper()
                own = b"CLIENT" in first or b"HELLO" in first
                self.request.sendall(b"+OK\r\n" * max(first.count(b"CLIENT\r\n"), 1) if own else reply)
                if not own and not reply:
                    return

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients hang up in the middle of what they do not understand."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            stopping.set()
            server.shutdown()
            thread.join()


CALLS = st.sampled_from(["push", "pop", "size", "stats", "peek", "dead", "purge", "done"])


@pytest.mark.timeout(600)
def test_replies_of_any_shape() -> None:
    @DRAWN
    @given(REPLIES, CALLS)
    def ask(reply: bytes, call: str) -> None:
        with redis_that_says(reply) as port:
            queue = open_queue(f"redis://127.0.0.1:{port}/0?queue=q&timeout=0.05")
            with suppress(FrayError):
                if call == "push":
                    queue.push(b"x")
                elif call == "done":
                    queue.done_many(queue.pop_many(3))
                elif call == "dead":
                    list(queue.dead_letters())
                else:
                    getattr(queue, call)()

    ask()
