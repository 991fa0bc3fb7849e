"""A client that means harm: it sends any bytes, counts what it tried and looks at every answer."""

import contextlib
import http.client
import json
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fray_queue import HttpQueueServer, Limits
from fray_queue.testing import ROUTES

TOKEN = "s3cret-token"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
LIMITS = Limits(item_bytes=1000, batch=10, body_seconds=0.3, wait_seconds=0.1)
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW")
PATIENCE = 30.0  # seconds after which a server hangs
_TELLTALE = (b"Traceback", b'File "', b"site-packages")


def paths(name: str) -> list[str]:
    """Return the path of every route, for a queue of that name."""
    return sorted({route.path.replace("{name}", name) for route in ROUTES})


def request(
    method: str, path: str | bytes, headers: dict[str, str] | None = None, body: bytes = b"", **more: str
) -> bytes:
    """Return a request as it goes over the wire, as wrong as its parts are."""
    target = path.encode() if isinstance(path, str) else path
    fields = {"Host": "localhost", "Content-Length": str(len(body)), **(headers or {})}
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method.encode(), target, lines.encode(), body)


class Attacker:
    """One server's enemy. `tried` counts the inputs."""

    def __init__(self, server: HttpQueueServer) -> None:
        host, _, port = server.url.partition("://")[2].rpartition(":")
        self.address = host, int(port)
        self.tried = 0

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=PATIENCE)

    def begin(self, data: bytes) -> socket.socket:
        """Connect and send what begins a request, before the server's time for a head is over."""
        connection = self.connect()
        with contextlib.suppress(ConnectionError):  # the machine was too busy for it
            connection.sendall(data)
        return connection

    def send(self, data: bytes, *, hang_up: bool = False) -> int | None:
        """Send an input and return the status of the answer; None where the server just hung up."""
        self.tried += 1
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):  # refused before all of it was sent
                connection.sendall(data)
            with contextlib.suppress(OSError):  # the server has hung up already: ENOTCONN
                if hang_up:
                    connection.shutdown(socket.SHUT_WR)
            method = data.partition(b" ")[0].decode(errors="replace")
            return self.answer(connection, method, secret="" if TOKEN.encode() in data else TOKEN)

    def answer(self, connection: socket.socket, method: str = "POST", secret: str = "") -> int | None:
        """Read one answer and check that it shows nothing of the server's inside, nor a secret."""
        response = http.client.HTTPResponse(connection, method=method)
        try:
            response.begin()
            body = response.read()
        except TimeoutError:
            raise AssertionError(f"no answer in {PATIENCE} seconds") from None
        except (ConnectionError, http.client.HTTPException):
            return None
        finally:
            response.close()
        shown = body + str(response.getheaders()).encode()
        assert not any(word in shown for word in _TELLTALE), shown
        assert not secret or secret.encode() not in shown, "a client that did not know the token is shown it"
        assert response.status < 500, (response.status, shown)
        return response.status


def state(server: HttpQueueServer, name: str) -> list[Any]:
    """What a queue holds, as its owner sees it, without what changes with time alone."""
    found: list[Any] = []
    for path in (f"/queues/{name}", f"/queues/{name}/peek", f"/queues/{name}/dead/records"):
        connection = http.client.HTTPConnection(server.url.partition("://")[2], timeout=PATIENCE)
        connection.request("GET", path, headers=RIGHT)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status == 200, (path, body)
        found.append(body)
    stats = json.loads(found[0])
    return [{key: stats[key] for key in ("name", "size", "pending", "in_flight", "dead")}, *found[1:]]


@contextlib.contextmanager
def besieged(folder: Path) -> Iterator[Attacker]:
    """Serve the queues `kept` and `victim`; afterwards the server is well and `kept` as it was."""
    with HttpQueueServer(token=TOKEN, store=folder / "store", limits=LIMITS) as server:
        for name in ("kept", "victim"):
            with server.new_queue(name, max_attempts=1) as queue:
                queue.push_many(["dead", "leased", "pending"])
                dead, _ = queue.pop_many(2, lease_timeout=1000)
                queue.release(dead)
        before, attacker = state(server, "kept"), Attacker(server)
        yield attacker
        assert state(server, "kept") == before
        with server.new_queue("after") as queue:
            queue.push("x")
            lease = queue.pop()
            assert lease is not None
            assert lease.item == "x"
    assert [path.name for path in folder.iterdir()] == ["store"]


def trickle(attacker: Attacker, connection: socket.socket) -> int | None:
    """Send a byte every so often until there is an answer."""
    connection.settimeout(0.02)
    for _ in range(300):
        try:
            connection.recv(1, socket.MSG_PEEK)
            break
        except TimeoutError:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b" ")
        except ConnectionError:  # hung up on; `answer` says so
            break
    connection.settimeout(10)
    return attacker.answer(connection)


class Bomb:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")  # what runs, not what stays open: the file is the proof


def sealed(header: bytes, payloads: bytes) -> bytes:
    """A body of records whose checksum fits a header that says anything."""
    return struct.pack(">4sII", b"FRQ1", len(header), zlib.crc32(header)) + header + payloads
