"""A server of a test, on a thread of its own."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)


@contextlib.contextmanager
def serving(made: Server) -> Iterator[Server]:
    """Give a server that serves until the block ends."""
    with made as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
