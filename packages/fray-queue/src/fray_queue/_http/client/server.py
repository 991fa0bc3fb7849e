"""A client of a server itself, for a page that shows its queues."""

import json
from collections.abc import Mapping
from typing import Any

from fray_queue._http.client.address import ServerAddress
from fray_queue._http.client.connections import Connections, Request
from fray_queue._http.client.network import BlockingNetwork, run_blocking
from fray_queue._http.client.reading import read_fields

_PATIENCE = 5.0  # seconds


class ServerClient:
    """Sends requests to a server and returns its JSON; thread-safe."""

    def __init__(self, address: ServerAddress) -> None:
        self._connections = Connections(address, BlockingNetwork(), timeout=_PATIENCE)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a request and return what it answers."""
        sent = ("", b"") if body is None else ("application/json", json.dumps(body).encode())
        request = Request(method, path, sent[1], sent[0])
        return read_fields(run_blocking(self._connections.ask(request)))

    def close(self) -> None:
        """Hang up."""
        self._connections.close()
