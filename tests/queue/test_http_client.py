"""HttpQueue reads whatever a server, or a proxy before it, may make of an answer by the rules of HTTP/1.1."""

import asyncio
import itertools
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest
from cutting_proxy import CuttingProxy
from last_words import give_time
from local_server import LocalServer
from queue_processes import wait_until
from queue_proxy import SwallowingProxy

from fray import QueueUnavailableError
from fray_queue import HttpQueue, HttpQueueServer, LimitError, Limits
from fray_queue.testing import Wire

Shape = Callable[[bytes], tuple[list[bytes], bool]]
OK = b"HTTP/1.1 200 OK\r\n"


def sized(body: bytes, *headers: bytes) -> bytes:
    return OK + b"".join(headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def byte_by_byte(body: bytes) -> tuple[list[bytes], bool]:
    return [bytes([byte]) for byte in sized(body)], True


def in_chunks(body: bytes) -> tuple[list[bytes], bool]:
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:3], body[3:]) if part]
    return [OK, b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"], True


def after_a_hint(body: bytes) -> tuple[list[bytes], bool]:
    return [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + sized(body)], True


def goodbye(body: bytes) -> tuple[list[bytes], bool]:
    return [sized(body, b"Connection: close\r\n")], False


def of_http_1_0(body: bytes) -> tuple[list[bytes], bool]:
    return [sized(body).replace(b"HTTP/1.1", b"HTTP/1.0", 1)], False


def every_other(broken: Callable[[bytes], tuple[list[bytes], bool]]) -> Shape:
    turns = itertools.count()
    return lambda body: broken(body) if next(turns) % 2 == 0 else ([sized(body)], True)


def cut_short(body: bytes) -> tuple[list[bytes], bool]:
    return [sized(body)[:-1]], False


def not_http(body: bytes) -> tuple[list[bytes], bool]:
    return [b"SSH-2.0-OpenSSH\r\n"], False


def twice(body: bytes) -> tuple[list[bytes], bool]:
    return [sized(body) + sized(b"another")], True


@pytest.mark.parametrize("shape", [byte_by_byte, in_chunks, after_a_hint, goodbye, of_http_1_0])
def test_an_answer_may_come_in_any_form(shape: Shape) -> None:
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        proxy.reshape = shape
        exchange(HttpQueue(proxy.url, "q", create=True), server.new_queue("q"))


@pytest.mark.parametrize("shape", [cut_short, not_http, twice])
def test_an_answer_that_is_none_is_asked_for_again_and_nothing_happens_twice(shape: Shape) -> None:
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        proxy.reshape = every_other(shape)
        exchange(HttpQueue(proxy.url, "q", create=True), server.new_queue("q"))


def exchange(queue: HttpQueue[bytes], direct: HttpQueue[bytes]) -> None:
    items = [b"x" * size for size in (0, 1, 200_000)]
    queue.push_many(items)
    for item in items:
        lease = queue.pop()
        assert lease is not None
        assert (lease.item, lease.attempt) == (item, 1)
        queue.done(lease)
    assert queue.pop() is None
    assert direct.size() == 0


class SshServer(LocalServer):
    """Reads a request first: what it left unread would make its end a reset."""

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers["Content-Length"]))
        pieces, stays_open = not_http(b"")
        request.wfile.write(b"".join(pieces))
        request.close_connection = not stays_open


def test_what_never_speaks_http_is_named_in_time() -> None:
    with SshServer() as server, pytest.raises(QueueUnavailableError, match=r"for 3 s: HttpParser"):
        HttpQueue[int](server.url, "q", create=True, timeout=3.0).push(1)


def test_a_refusal_that_comes_before_the_body_was_sent_is_read() -> None:
    refusal = json.dumps({"error": "slow", "message": "too slow by far", "facts": []}).encode()
    answer = sized(refusal, b"Connection: close\r\n").replace(b"200 OK", b"408 Request Timeout")

    def refuse() -> None:
        connection, _ = listener.accept()
        with connection:  # what was not read makes its end a reset
            connection.recv(1)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse)
        thread.start()
        queue: HttpQueue[bytes] = HttpQueue(f"http://127.0.0.1:{listener.getsockname()[1]}", "q", timeout=5.0)
        with queue, pytest.raises(LimitError, match="too slow by far"):
            Wire(queue).send_items([[b"x" * (60 << 20)]])
        thread.join(10)


class InterruptError(BaseException):
    """Comes at any point, as Ctrl-C does."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, from any other."""

    def raise_it(*_: object) -> None:
        raise InterruptError

    before = signal.signal(signal.SIGUSR1, raise_it)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_request_does_not_answer_the_next(
    interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_time(monkeypatch)
    interrupted = threading.Event()

    def answer_too_late(body: bytes) -> tuple[list[bytes], bool]:
        proxy.reshape = None
        interrupt()
        interrupted.wait(30)
        return [sized(body)], True

    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        queue: HttpQueue[str] = HttpQueue(proxy.url, "q", create=True)
        queue.push("first")
        proxy.reshape = answer_too_late
        with pytest.raises(InterruptError):
            queue.pop()
        interrupted.set()
        assert (queue.size(), queue.pending()) == (1, 1)  # what it was granted is given back


def test_an_interrupt_while_the_server_is_away_ends_the_call(interrupt: Callable[[], None]) -> None:
    times: list[float] = []

    def go_away() -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        listener.close()
        connection.close()
        time.sleep(0.5)  # the client is between two tries by then: nothing tells
        times.append(time.monotonic())
        interrupt()

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=go_away)
    with HttpQueue[str](f"http://127.0.0.1:{listener.getsockname()[1]}", "q", timeout=10.0) as queue:
        thread.start()
        with pytest.raises(InterruptError):
            queue.pop(wait=60.0)
        assert time.monotonic() - times[0] < 5.0
        thread.join(10)


def test_an_interrupt_is_held_up_for_a_moment_by_a_server_that_does_not_answer(
    interrupt: Callable[[], None],
) -> None:
    """Neither the withdrawal of the second request is answered nor the return of what the first leased."""
    answers, over = itertools.count(), threading.Event()
    times: list[float] = []

    def stop_answering(body: bytes) -> tuple[list[bytes], bool]:
        number = next(answers)
        if number == 1:
            times.append(time.monotonic())
            interrupt()
        if number:
            over.wait(30)
        return [sized(body)], True

    with HttpQueueServer(limits=Limits(batch=1)) as server, SwallowingProxy(server.url) as proxy:
        for item in "ab":
            server.new_queue("q").push(item)
        with HttpQueue[str](proxy.url, "q", timeout=10.0) as queue:
            proxy.reshape = stop_answering
            with pytest.raises(InterruptError):
                queue.pop_many(2)
            assert time.monotonic() - times[0] < 5.0
        over.set()


def test_a_body_may_take_longer_than_the_timeout_while_it_goes_out() -> None:
    answer = sized(b'{"stored": 1}')

    def read_slowly() -> None:
        connection, _ = listener.accept()
        with connection:
            data = connection.recv(1 << 16)
            head, _, begun = data.partition(b"\r\n\r\n")
            left = int(head.lower().split(b"content-length:")[1].split()[0]) - len(begun)
            while left:
                time.sleep(0.2)
                piece = min(left, 1 << 20)
                while piece:
                    received = len(connection.recv(min(piece, 1 << 16)))
                    if not received:
                        return
                    piece, left = piece - received, left - received
            connection.sendall(answer)

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=read_slowly)
        thread.start()
        with HttpQueue[bytes](f"http://127.0.0.1:{listener.getsockname()[1]}", "q", timeout=2.0) as queue:
            queue.push(b"x" * (24 << 20))
        thread.join(30)


def test_threads_that_come_at_once_leave_no_more_than_some_connections_open() -> None:
    def sockets() -> int:
        ends = psutil.Process().net_connections("tcp")
        return sum(each.status == "ESTABLISHED" and each.raddr.port == server.port for each in ends)

    with HttpQueueServer() as server, ThreadPoolExecutor(40) as pool:
        queue = server.new_queue("q")
        pops = [pool.submit(queue.pop, wait=60.0) for _ in range(40)]
        wait_until(lambda: sockets() >= 40)
        queue.push_many(range(40))
        leases = [pop.result(60) for pop in pops]
        assert sorted(lease.item for lease in leases if lease) == list(range(40))
        assert sockets() == 32
        queue.done_many(lease for lease in leases if lease)
        assert (queue.size(), sockets()) == (0, 32)
        queue.close()


@pytest.fixture
def behind_a_router() -> Iterator[tuple[CuttingProxy, HttpQueue[int]]]:
    with (
        HttpQueueServer() as server,
        CuttingProxy(server.port) as proxy,
        HttpQueue[int](f"http://127.0.0.1:{proxy.port}", "q", create=True, timeout=3.0) as queue,
    ):
        yield proxy, queue


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_connection_that_a_router_forgot_is_replaced(
    behind_a_router: tuple[CuttingProxy, HttpQueue[int]], asynchronous: bool
) -> None:
    proxy, queue = behind_a_router

    async def push_twice() -> None:
        await queue.aio.push(1)
        proxy.forget_all()
        await queue.aio.push(2)

    if asynchronous:
        asyncio.run(push_twice())
    else:
        queue.push(1)
        proxy.forget_all()
        queue.push(2)
    assert [lease.item for lease in queue.pop_many(3)] == [1, 2]


def test_a_server_that_does_not_answer_on_a_new_connection_either_is_named_in_time(
    behind_a_router: tuple[CuttingProxy, HttpQueue[int]],
) -> None:
    proxy, queue = behind_a_router
    queue.push(1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        proxy.lead_to(mute.getsockname()[1])
        proxy.forget_all()
        with pytest.raises(QueueUnavailableError, match="for 3 s"):
            queue.push(2)


def test_a_connection_that_was_idle_for_a_minute_is_not_used_again(
    behind_a_router: tuple[CuttingProxy, HttpQueue[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, queue = behind_a_router
    queue.push_many([1, 2])
    assert (queue.size(), proxy.connections) == (2, 1)
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 61)
    assert (queue.size(), proxy.connections) == (2, 2)


def test_the_system_keeps_a_connection_alive_that_waits(
    behind_a_router: tuple[CuttingProxy, HttpQueue[int]],
) -> None:
    proxy, queue = behind_a_router
    queue.push(1)

    def timer() -> str:
        found = map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        (ours,) = [each for each in found if each[2].endswith(f":{proxy.port:04X}") and each[3] == "01"]
        return ours[5]

    wait_until(lambda: timer().startswith("02:"))  # that of keep-alive
