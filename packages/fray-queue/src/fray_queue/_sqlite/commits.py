"""Operations of many threads, committed in groups: all calls that come meanwhile share one flush."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import apsw

from fray import FrayError
from fray_queue._errors import QueueFullError
from fray_queue._sqlite.library import StoreError, named_errors
from fray_queue._sqlite.store import QueueStore

R = TypeVar("R")


class CommitRequest(Generic[R]):
    """One operation, and what became of it."""

    __slots__ = ("durable", "error", "grows", "operation", "result", "settled")

    def __init__(
        self, operation: Callable[[QueueStore], R], *, durable: bool = True, grows: bool = False
    ) -> None:
        self.operation, self.durable, self.grows = operation, durable, grows
        self.settled = False
        self.result: Any = None
        self.error: Exception | None = None

    def outcome(self) -> R:
        """Return what the operation returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        result: R = self.result
        return result


def commit(store: QueueStore, requests: Sequence[CommitRequest[Any]]) -> None:
    """Do the operations in one transaction and settle their requests.

    An operation that refuses (any FrayError or ValueError) has changed nothing, and refuses alone. When
    SQLite or an operation fails, nothing of the group is stored, and each is done again in a transaction of
    its own: so who takes too much, or asks for what nobody foresaw, fails alone.
    """
    try:
        _commit_together(store, requests)
    except (FrayError, OSError, _OperationFailedError) as failure:
        if len(requests) == 1:
            _settle_failed(store, requests[0], failure)
            return
        for request in requests:
            commit(store, [request])


def sync(store: QueueStore, requests: Sequence[CommitRequest[Any]]) -> None:
    """Have on disk what those of the requests stored that are to be durable.

    For a store that one thread writes to: the next transaction has not begun.

    Raises:
        OSError: The disk failed. The requests are committed, yet nobody knows whether they last: Linux
            reports a flush that failed once, and the next one as good. The store is to be opened again.
    """
    changes = store.file.connection.total_changes()
    durable = any(request.durable and request.error is None for request in requests)
    if durable and changes != store.synced:  # a pop that found nothing has nothing to wait for
        store.file.sync()
        store.synced = changes


class _OperationFailedError(Exception):
    """An operation failed, as its cause says, when part of it may have been written."""


def _settle_failed(store: QueueStore, request: CommitRequest[Any], failure: Exception) -> None:
    """Try again with the room that is held back, if the disk is full and the request stores no items."""
    cause = failure.__cause__ if isinstance(failure, _OperationFailedError) else failure
    request.error = cause if isinstance(cause, Exception) else failure
    if isinstance(failure, QueueFullError) and not request.grows and store.file.make_room():
        try:
            _commit_together(store, [request])
        except (FrayError, OSError) as again:
            request.error = again
    request.settled = True


def _commit_together(store: QueueStore, requests: Sequence[CommitRequest[Any]]) -> None:
    with named_errors(store.file.path), store.writing():
        for request in requests:
            request.error = None
            try:
                request.result = request.operation(store)
            except UnicodeError as failure:  # of a text that SQLite got after others
                raise _OperationFailedError from failure
            except (FrayError, ValueError) as refusal:
                request.error = refusal
            except (apsw.Error, OSError):
                raise
            except Exception as failure:
                raise _OperationFailedError from failure
    for request in requests:
        request.settled = True
    if any(request.grows for request in requests):
        store.file.keep_reserve()


class StoreClosedError(Exception):
    """Another thread closed the store; nothing was done."""


class GroupCommit:
    """Commits the operations of threads; one that finds no other committing does it for all that wait."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self.failure: str | None = None
        """Why the log could not be flushed; then the store is to be opened again."""
        self._waiting: deque[CommitRequest[Any]] = deque()
        self.at_work = threading.Lock()
        """Held by the thread that uses the store."""
        self._syncing = threading.Lock()
        self._commits = self._synced = 0
        self._closed = False

    def run(self, operation: Callable[[QueueStore], R], *, durable: bool = True, grows: bool = False) -> R:
        """Do an operation; returns when it is committed, and, if it is to be durable, on disk.

        Raises:
            StoreClosedError: It was closed before.
        """
        request = CommitRequest(operation, durable=durable, grows=grows)
        try:
            self._waiting.append(request)
            with self.at_work:
                if not request.settled:
                    self._check_open()
                    if request not in self._waiting:  # a thread that took it out was interrupted
                        self._waiting.append(request)
                    self._commit_all()
                    self._commits += 1
                commits = self._commits
            if durable and request.error is None:
                self._sync(commits)
        except BaseException:
            if not request.settled and request in self._waiting:  # interrupted before anybody began it
                self._waiting.remove(request)
            raise
        return request.outcome()

    def look(self, reading: Callable[[QueueStore], R]) -> R:
        """Read in a transaction that writes nothing.

        Raises:
            StoreClosedError: It was closed before.
        """
        with self.at_work:
            self._check_open()
            with named_errors(self._store.file.path), self._store.reading():
                return reading(self._store)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError

    def _sync(self, commits: int) -> None:
        """Have so many commits on disk; one wait serves all threads that came meanwhile.

        Raises:
            StoreError: A flush failed, this one or one before: Linux reports the next one as good.
        """
        with self._syncing:
            if self._synced >= commits:
                return
            if self.failure is not None:
                raise StoreError(self.failure)
            newest = self._commits
            try:
                self._store.file.sync()
            except OSError as error:
                self.failure = (
                    f"the store {self._store.file.path!r} could not be written to the disk: {error}"
                )
                raise StoreError(self.failure) from error
            self._synced = newest

    def _commit_all(self) -> None:
        group = []
        while self._waiting:
            group.append(self._waiting.popleft())
        try:
            commit(self._store, group)
        except BaseException as error:
            for request in group:  # they belong to other threads, which must not take it for done
                if not request.settled:
                    request.error = InterruptedError(f"the commit was interrupted: {error!r}")
                    request.settled = True
            raise

    def close(self) -> None:
        """Release the store; calls that are under way in other threads get what they wait for first."""
        with self.at_work:
            # A thread may be about to flush what it committed, and the log may go with the connection.
            with contextlib.suppress(StoreError):  # that thread raises it
                self._sync(self._commits)
            self._closed = True
            self.close_held()

    def close_held(self) -> None:
        """Release the store; the caller holds `at_work`."""
        self._store.file.close()
