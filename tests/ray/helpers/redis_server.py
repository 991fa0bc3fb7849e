"""Debian's redis-server, in which a head keeps its state."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fray.backend import free_ports
from fray.testing.gates import until


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Give the host and port of one that ends with the block."""
    program = shutil.which("redis-server")
    assert program, "the tests of a head that is lost need Debian's redis-server"
    (port,) = free_ports(1)
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            until(lambda: _answers(port), "redis-server answers")
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False
