"""The thread that does the operations of a server's requests, and commits them in groups."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from fray import QueueUnavailableError
from fray_queue._sqlite.commits import CommitRequest, commit, sync
from fray_queue._sqlite.library import StoreError
from fray_queue._sqlite.store import QueueStore

_log = logging.getLogger("fray.queue")
R = TypeVar("R")


class WriterEndedError(QueueUnavailableError):
    """The writer is gone."""

    def __str__(self) -> str:
        return "the server can use its store no more; its log says why. Start it again"


class Writer:
    """Does operations on a store for an event loop, in their order.

    A store in memory has no disk to wait for: there they are done at once, in the loop. On a disk, all that
    arrive during one commit are in the next.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[CommitRequest[Any], asyncio.Future[Any]]] = []
        self._changed = threading.Condition()
        self._closing = False
        self.ended = False
        """Whether nothing can be done any more."""
        self._thread: threading.Thread | None = None
        if not store.file.in_memory:
            self._thread = threading.Thread(target=self._run, name="fray-queue-writer")
            self._thread.start()

    async def run(
        self, operation: Callable[[QueueStore], R], *, durable: bool = True, grows: bool = False
    ) -> R:
        """Do an operation; returns when it is on disk.

        Args:
            grows: Whether it stores items; others get room on a disk that is full.
        """
        if self._thread is None:
            try:
                return operation(self._store)
            except apsw.Error as error:
                raise StoreError(f"the store in memory failed: {type(error).__name__}: {error}") from error
        request = CommitRequest(operation, durable=durable, grows=grows)
        settled: asyncio.Future[Any] = self._loop.create_future()
        with self._changed:
            if self.ended or self._closing:
                raise WriterEndedError
            self._pending.append((request, settled))
            self._changed.notify()
        await settled
        return request.outcome()

    def _run(self) -> None:
        group: list[tuple[CommitRequest[Any], asyncio.Future[Any]]] = []
        try:
            while group := self._next_group():
                requests = [request for request, _ in group]
                commit(self._store, requests)
                sync(self._store, requests)
                self._settle(group)
        except BaseException:  # noqa: BLE001 - nobody may wait for a writer that is gone
            _log.exception("the store %r can be used no more", self._store.file.path)
            with self._changed:
                self.ended = True
                group, self._pending = group + self._pending, []
            for request, _ in group:  # a restarted server knows which of them are stored
                request.error = WriterEndedError()
            self._settle(group)

    def _next_group(self) -> list[tuple[CommitRequest[Any], "asyncio.Future[Any]"]]:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            group, self._pending = self._pending, []
            return group

    def _settle(self, group: list[tuple[CommitRequest[Any], "asyncio.Future[Any]"]]) -> None:
        def tell() -> None:
            for _, settled in group:
                if not settled.done():
                    settled.set_result(None)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(tell)

    def close(self) -> None:
        """Do what is pending, end the thread and release the store."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._store.file.close()
