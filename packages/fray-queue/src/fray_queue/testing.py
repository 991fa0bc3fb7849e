"""The inner parts of the queues, for tests that simulate their protocols or break what is below them.

Nothing here is promised to stay: a program has no use for it. Names are loaded when they are requested,
because each kind of queue needs a library of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray_queue import HttpQueue
    from fray_queue._cli import queue as queue_command
    from fray_queue._engines import queue as engine_queue
    from fray_queue._file import full_buckets, item_log
    from fray_queue._file import listing as file_listing
    from fray_queue._file import queue as file_queue
    from fray_queue._file.batch_log import Plan
    from fray_queue._file.claims import Claims
    from fray_queue._file.full_buckets import FullBuckets
    from fray_queue._file.item_log import Claim
    from fray_queue._file.listing import Listing, Spot
    from fray_queue._file.records import (
        DONE,
        LEASE,
        BatchState,
        ItemAddress,
        Record,
        SharedRecord,
        Slot,
        decode_batch,
        decode_record,
        encode_extension,
        seal_batch,
        seal_payload,
    )
    from fray_queue._file.stores import temporary
    from fray_queue._file.stores.fsspec_store import FsspecStore
    from fray_queue._file.stores.local import LocalStore
    from fray_queue._http.protocol.wire import pack, unpack
    from fray_queue._http.server import api as http_api
    from fray_queue._http.server.routes import RECORDS, ROUTES
    from fray_queue._sqlite import commits as sqlite_commits
    from fray_queue._sqlite import connection as sqlite_connection
    from fray_queue._sqlite import library as sqlite_library
    from fray_queue._sqlite import opened_queue as sqlite_queue
    from fray_queue._sqlite.clocks import LeaseClock
    from fray_queue._sqlite.store import QueueStore

__all__ = [
    "DONE",
    "LEASE",
    "RECORDS",
    "ROUTES",
    "BatchState",
    "Claim",
    "Claims",
    "FsspecStore",
    "FullBuckets",
    "ItemAddress",
    "LeaseClock",
    "Listing",
    "LocalStore",
    "Plan",
    "QueueStore",
    "Record",
    "SharedRecord",
    "Slot",
    "Spot",
    "Wire",
    "connections_of",
    "decode_batch",
    "decode_record",
    "encode_extension",
    "engine_queue",
    "file_listing",
    "file_queue",
    "full_buckets",
    "http_api",
    "item_log",
    "pack",
    "queue_command",
    "seal_batch",
    "seal_payload",
    "sqlite_commits",
    "sqlite_connection",
    "sqlite_library",
    "sqlite_queue",
    "temporary",
    "unpack",
]

# Name -> its module below `fray_queue`.
_RECORDS = "_file.records"
_HOMES = {
    **dict.fromkeys(
        ("DONE", "LEASE", "ItemAddress", "BatchState", "Record", "SharedRecord", "Slot"), _RECORDS
    ),
    **dict.fromkeys(("decode_batch", "decode_record", "encode_extension"), _RECORDS),
    **dict.fromkeys(("seal_batch", "seal_payload"), _RECORDS),
    **dict.fromkeys(("RECORDS", "ROUTES"), "_http.server.routes"),
    **dict.fromkeys(("pack", "unpack"), "_http.protocol.wire"),
    "Claim": "_file.item_log",
    "Claims": "_file.claims",
    "FsspecStore": "_file.stores.fsspec_store",
    "FullBuckets": "_file.full_buckets",
    "LeaseClock": "_sqlite.clocks",
    "Listing": "_file.listing",
    "LocalStore": "_file.stores.local",
    "Plan": "_file.batch_log",
    "QueueStore": "_sqlite.store",
    "Spot": "_file.listing",
}
_MODULES = {
    "engine_queue": "_engines.queue",
    "file_listing": "_file.listing",
    "file_queue": "_file.queue",
    "full_buckets": "_file.full_buckets",
    "http_api": "_http.server.api",
    "item_log": "_file.item_log",
    "sqlite_commits": "_sqlite.commits",
    "sqlite_connection": "_sqlite.connection",
    "sqlite_library": "_sqlite.library",
    "sqlite_queue": "_sqlite.opened_queue",
    "temporary": "_file.stores.temporary",
}


class Wire:
    """The requests of an HTTP client as functions, also those that no program makes."""

    def __init__(self, queue: "HttpQueue[Any]") -> None:
        self._calls = queue._calls

    def __getattr__(self, name: str) -> Any:
        """Return a request by its name."""
        from fray_queue._http.client.network import run_blocking

        return lambda *args, **options: run_blocking(getattr(self._calls, f"_{name}")(*args, **options))


def connections_of(queue: "HttpQueue[Any]") -> Any:
    """Return what sends an HTTP client's requests: a test fails requests there, or counts them."""
    return queue._connections


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fray_queue.{_MODULES[name]}")
    if name == "queue_command":
        return import_module("fray_queue._cli").queue
    if name in _HOMES:
        return getattr(import_module(f"fray_queue.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
