"""What runs in the scheduler: it has one thread for this, so each function is atomic."""

import asyncio
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

_PATIENCE = 1000  # looks
_names: dict[str, bytes] = {}
_claims: dict[str, list[str]] = {}
_wanted: dict[str, list[str]] = {}  # by programs, before the key is submitted


def swap(name: str, expected: bytes | None, record: bytes | None) -> bytes | None:
    """Replace a record if it is the expected one."""
    found = _names.get(name)
    if found == expected:
        if record is not None:
            _names[name] = record
        else:
            _names.pop(name, None)
    return found


class KeyBooks(SchedulerPlugin):
    """Forgets who ran a key with the key; notifies those that waited for a key before it was there."""

    name = "fray"

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Record what happens to a key."""
        if finish == "forgotten":
            _claims.pop(key, None)
        for client in _wanted.pop(key, ()):
            self._scheduler.client_desires_keys([key], client)


def _keep_books(scheduler: Any) -> None:
    if KeyBooks.name not in scheduler.plugins:
        scheduler.add_plugin(KeyBooks(scheduler))


def claim(key: str, by: str, dask_scheduler: Any = None) -> list[str]:
    """Record which call is about to run a key; return those recorded before."""
    _keep_books(dask_scheduler)
    claims = _claims.setdefault(key, [])
    claims.append(by)
    return claims[:-1]


async def want_known(key: str, client: str, dask_scheduler: Any = None) -> None:
    """Count a client as a holder of a key that is stored: its program's message may come after this."""
    for _ in range(_PATIENCE):
        if key in dask_scheduler.tasks:
            break
        await asyncio.sleep(0.01)
    else:
        raise KeyError(f"Dask has no value of {key}")
    dask_scheduler.client_desires_keys([key], client)


def want(key: str, client: str, dask_scheduler: Any = None) -> None:
    """Count a client as a holder of a key, now and not when its next message comes."""
    _keep_books(dask_scheduler)
    if key in dask_scheduler.tasks:
        dask_scheduler.client_desires_keys([key], client)
    else:
        _wanted.setdefault(key, []).append(client)
