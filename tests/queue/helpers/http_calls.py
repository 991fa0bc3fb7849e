"""What a client sends below its public face: requests that no program makes, and single ones of many."""

from typing import Any

from fray_queue import HttpQueue
from fray_queue._http.client.network import run_blocking


class Wire:
    """The inner calls of a client, as functions."""

    def __init__(self, queue: HttpQueue[Any]) -> None:
        self._calls = queue._calls

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: run_blocking(getattr(self._calls, name)(*args, **options))
