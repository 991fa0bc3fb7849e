"""Endpoints that a controller forgets where they are not renewed, as later versions of Iris do."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from fray import ClusterUnavailableError, FrayError
from fray.backend import start_thread


class EndpointLeases:
    """Renews the endpoints of this process, each in a thread that ends with it."""

    def __init__(self) -> None:
        self._ends: dict[str, threading.Event] = {}

    def keep(self, endpoint_id: str, seconds: float, renew: Callable[[], object]) -> None:
        """Renew an endpoint three times in each lease of so many seconds, as Iris's own client does."""
        end = self._ends[endpoint_id] = threading.Event()
        arguments = (end, seconds / 3, renew)
        start_thread(threading.Thread(target=_renew, args=arguments, name="fray-iris-endpoint", daemon=True))

    def drop(self, endpoint_id: str) -> None:
        """Renew an endpoint no more."""
        end = self._ends.pop(endpoint_id, None)
        if end is not None:
            end.set()


def lease_of(answer: Mapping[str, Any]) -> float | None:
    """Return the seconds for which an endpoint was registered; None for as long as its task runs."""
    milliseconds = answer.get("lease_duration", {}).get("milliseconds", 0)
    return int(milliseconds) / 1000 or None


def _renew(end: threading.Event, every: float, renew: Callable[[], object]) -> None:
    while not end.wait(every):
        try:
            renew()
        except ClusterUnavailableError:
            continue  # it may be back in time
        except (FrayError, KeyError, ValueError):
            return  # the attempt is over, or not the latest any more
