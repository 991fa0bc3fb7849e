"""The queues that are compared: each pushes bytes, takes one under a lease, and finishes it."""

import contextlib
import http.client
import itertools
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

# Servers and clients of ours find it there; the bare ones pay for the header, too.
os.environ.setdefault("FRAY_QUEUE_TOKEN", "of-the-benchmark")

BARE_SERVER = """
import collections, sys
from aiohttp import web
line, leased = collections.deque(), {}
async def push(request):
    line.append(await request.read())
    return web.Response()
async def pop(request):
    if not line:
        return web.Response(status=204)
    number = str(len(leased) + id(request))
    leased[number] = line.popleft()
    return web.Response(body=leased[number], headers={"Number": number})
async def done(request):
    leased.pop((await request.read()).decode(), None)
    return web.Response()
app = web.Application()
app.add_routes([web.post("/push", push), web.post("/pop", pop), web.post("/done", done)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
"""


# The same on the wire as a server of ours, with a deque for a queue: no rules, no idempotency, no guard.
BARE_QUEUE = """
import collections, itertools, json, sys
from aiohttp import web
from fray_queue.testing import pack, unpack
line, leased, numbers = collections.deque(), {}, itertools.count()
async def push(request):
    records = unpack(await request.read())
    line.extend(records)
    return web.Response(body=json.dumps({"stored": len(records)}).encode(), content_type="application/json")
async def pop(request):
    asked = json.loads(await request.read())
    metas, payloads = [], []
    while line and len(metas) < asked["n"]:
        meta, payload = line.popleft()
        lease_id = str(next(numbers))
        leased[lease_id] = payload
        metas.append({"item_id": meta["id"], "lease_id": lease_id, "timestamp": 0.0, "attempt": 1,
                      "expires_at": 0.0})
        payloads.append(payload)
    return web.Response(body=pack(metas, payloads), content_type="application/octet-stream")
async def done(request):
    for _, lease_id in json.loads(await request.read())["leases"]:
        leased.pop(lease_id)
    return web.Response(body=b'{"refused": []}', content_type="application/json")
app = web.Application(client_max_size=1 << 30)
routes = {"push": push, "pop": pop, "done": done}
app.add_routes([web.post("/queues/q/" + name, handler) for name, handler in routes.items()])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
"""


class Peer:
    """An adapter; `batch` many at once where a queue can."""

    batch = 1

    def push(self, payload: bytes) -> None: ...
    def take(self) -> Any: ...
    def done(self, token: Any) -> None: ...


class Simple(Peer):
    """The standard library's queue: no lease."""

    def __init__(self) -> None:
        self.queue: Any = queue.SimpleQueue()

    def push(self, payload: bytes) -> None:
        self.queue.put(payload)

    def take(self) -> Any:
        return None if self.queue.empty() else self.queue.get()


class Fray(Peer):
    """Any of ours."""

    def __init__(self, opened: Any, batch: int = 1) -> None:
        self.queue, self.batch = opened, batch

    def push(self, payload: bytes) -> None:
        if self.batch == 1:
            self.queue.push(payload)
        else:
            self.queue.push_many([payload] * self.batch)

    def take(self) -> Any:
        return self.queue.pop() if self.batch == 1 else self.queue.pop_many(self.batch) or None

    def done(self, token: Any) -> None:
        if self.batch == 1:
            self.queue.done(token)
        else:
            self.queue.done_many(token)


class Bare(Peer):
    """aiohttp and a deque behind `http.client`: the floor of HTTP in Python."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def _ask(self, path: str, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        self.connection.request("POST", path, body)
        response = self.connection.getresponse()
        return response, response.read()

    def push(self, payload: bytes) -> None:
        self._ask("/push", payload)

    def take(self) -> Any:
        response, _ = self._ask("/pop", b"")
        return response.getheader("Number") if response.status == 200 else None

    def done(self, token: Any) -> None:
        self._ask("/done", token.encode())


class Beanstalk(Peer):
    def __init__(self, port: int) -> None:
        import greenstalk

        self.client = greenstalk.Client(("127.0.0.1", port), encoding=None)
        self.port = port

    def push(self, payload: bytes) -> None:
        self.client.put(payload)

    def push_many(self, payload: bytes, batches: int) -> None:
        """Push batches of 100 by its protocol, the answers of a batch read together: greenstalk cannot."""
        batch = b"put 65536 0 60 %d\r\n%s\r\n" % (len(payload), payload) * 100
        with (
            socket.create_connection(("127.0.0.1", self.port)) as connection,
            connection.makefile("rb") as lines,
        ):
            for _ in range(batches):
                connection.sendall(batch)
                for _ in range(100):
                    answer = lines.readline()
                    if not answer.startswith(b"INSERTED "):
                        raise RuntimeError(f"beanstalkd did not store an item: {answer!r}")

    def take(self) -> Any:
        import greenstalk

        try:
            return self.client.reserve(timeout=0)
        except greenstalk.TimedOutError:
            return None

    def done(self, token: Any) -> None:
        self.client.delete(token)


class Redis(Peer):
    """A list, and a Lua script that moves an item under a lease."""

    LEASE = (
        "local id = redis.call('rpop', 'line') if not id then return nil end "
        "redis.call('zadd', 'leases', ARGV[1], id) return {id, redis.call('hget', 'items', id)}"
    )

    def __init__(self, port: int) -> None:
        import redis

        self.client = redis.Redis(port=port)
        self.lease = self.client.register_script(self.LEASE)
        self.numbers = itertools.count()
        self.tag = uuid.uuid4().hex

    def push(self, payload: bytes) -> None:
        item = f"{self.tag}{next(self.numbers)}"
        pipe = self.client.pipeline(transaction=True)
        pipe.hset("items", item, payload).lpush("line", item).execute()

    def take(self) -> Any:
        found = self.lease(args=[time.time() + 60])
        return found[0] if found else None

    def done(self, token: Any) -> None:
        pipe = self.client.pipeline(transaction=True)
        pipe.zrem("leases", token).hdel("items", token).execute()


class PersistAck(Peer):
    def __init__(self, folder: str) -> None:
        import persistqueue

        self.empty = persistqueue.exceptions.Empty
        self.queue = persistqueue.SQLiteAckQueue(folder, auto_commit=True, multithreading=True)

    def push(self, payload: bytes) -> None:
        self.queue.put(payload)

    def take(self) -> Any:
        try:
            return self.queue.get(block=False, raw=True)
        except self.empty:
            return None

    def done(self, token: Any) -> None:
        self.queue.ack(id=token["pqid"])


class Lite(Peer):
    def __init__(self, path: str) -> None:
        import litequeue

        self.queue = litequeue.LiteQueue(path)

    def push(self, payload: bytes) -> None:
        self.queue.put(payload.decode())

    def take(self) -> Any:
        return self.queue.pop()

    def done(self, token: Any) -> None:
        self.queue.done(token.message_id)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def server(command: Callable[[int], list[str]]) -> Iterator[int]:
    """Run a server on a free port of loopback, and end it by its process id."""
    port = free_port()
    process = subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


def beanstalkd(port: int) -> list[str]:
    """Return the command of a beanstalkd that keeps its items in memory."""
    return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port)]


def redis_server(port: int) -> list[str]:
    """Return the command of a Redis that keeps its items in memory."""
    return ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""]


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Make a folder in BENCH_DIR, and remove it."""
    path = tempfile.mkdtemp(dir=os.environ.get("BENCH_DIR"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def fray_server(port: int, *arguments: str) -> list[str]:
    """Return the command of one of our servers with a queue `q`."""
    return [sys.executable, "-m", "fray", "queue", "serve", "--port", str(port), "--queue", "q", *arguments]


LIMITED = """
import sys, time
from fray_queue import HttpQueueServer, Limits
port, items, folder = sys.argv[1:]
with HttpQueueServer(port=int(port), store=folder or None, limits=Limits(queue_items=int(items))) as server:
    for name in ("full", "other"):
        server.new_queue(name)
    while True:
        time.sleep(60)
"""


def limited_server(port: int, items: int, folder: str) -> list[str]:
    """Return the command of a server whose queues, `full` and `other`, take so many items."""
    return [sys.executable, "-c", LIMITED, str(port), str(items), f"{folder}/s" if folder else ""]
