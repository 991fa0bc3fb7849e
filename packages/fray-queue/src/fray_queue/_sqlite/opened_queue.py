"""A queue of a file as one process has it open: its transactions, and what wakes its threads."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from fray import QueueUnavailableError, WrongProcessError
from fray.backend import poll_until
from fray_queue._checks import MOST_DEAD
from fray_queue._errors import QueueExistsError, QueueNotFoundError
from fray_queue._items import Settings
from fray_queue._sqlite.clocks import LeaseClock, boot_clock, manual_clock
from fray_queue._sqlite.commits import GroupCommit, StoreClosedError
from fray_queue._sqlite.connection import StoreFile
from fray_queue._sqlite.library import named_errors
from fray_queue._sqlite.rows import QueueRow
from fray_queue._sqlite.store import QueueStore

R = TypeVar("R")

_LONGEST_PAUSE = 0.02  # seconds between two looks of a waiting pop; a look takes some 20 us
_FORK_WAITS = 5.0  # seconds for the transactions of other threads; then the child cannot use the queue


class OpenedQueue:
    """Opens the file when it is first used, and again after `close` or in a forked child."""

    def __init__(
        self, path: str, name: str, settings: Settings, timeout: float, clock: Callable[[], float] | None
    ) -> None:
        self._path, self._name, self._settings = path, name, settings
        self._timeout, self._clock = timeout, clock
        self._start()
        _open.add(self)

    def _start(self) -> None:
        self.opening = threading.Lock()
        self._commits: GroupCommit | None = None
        self._arrival = threading.Condition()
        self._changes = 0  # by this process: what its waiting pops need not poll for
        self._held: threading.Lock | None = None  # while the process forks

    def run(
        self, operation: Callable[[QueueStore, QueueRow], R], *, durable: bool = True, grows: bool = False
    ) -> R:
        """Do an operation in a transaction.

        Args:
            durable: Whether it must outlast a power failure; every operation outlasts a killed process.
                A lease need not: its holder is on this machine, and ends with it. Nor need `done`: an item
                may come again.
        """
        name = self._name
        return self._use(
            lambda commits: commits.run(
                lambda store: operation(store, _queue(store, name)), durable=durable, grows=grows
            )
        )

    def look(self, reading: Callable[[QueueStore, QueueRow], R]) -> R:
        """Read, beside the writers."""
        name = self._name
        return self._use(lambda commits: commits.look(lambda store: reading(store, _queue(store, name))))

    def _use(self, call: Callable[[GroupCommit], R]) -> R:
        while True:
            try:
                return call(self.store())
            except StoreClosedError:  # by another thread, after this one got it: it is opened again
                continue

    def store(self) -> GroupCommit:
        """Return the store, opened if need be: again, where the disk failed."""
        self._check_usable()
        commits = self._commits
        if commits is None or commits.failure is not None:
            with self.opening:
                commits = self._commits
                if commits is not None and commits.failure is not None:
                    self._commits = None
                    commits.close()
                    commits = None
                if commits is None:
                    commits = self._commits = self._open()
        return commits

    def _open(self) -> GroupCommit:
        file = StoreFile(self._path, self._lease_clock(), timeout=self._timeout)
        store = QueueStore(file, shared=True)
        try:
            with named_errors(self._path), store.writing():
                self._settle_settings(store)
        except BaseException:
            file.close()
            raise
        return GroupCommit(store)

    def _settle_settings(self, store: QueueStore) -> None:
        """Make the queue, or take the settings that it has."""
        try:
            queue = store.queue(self._name)
        except QueueNotFoundError:
            store.create(self._name, self._settings)
            return
        for name in ("max_attempts", "max_size", "max_dead"):
            has, given = getattr(queue, name), getattr(self._settings, name)
            if given is None or has == given:
                continue
            if has is not None and not (name == "max_dead" and has == MOST_DEAD):
                raise QueueExistsError(
                    f"queue {self._name!r} of {self._path!r} has {name}={has}, not {given}"
                )
            setattr(queue, name, given)
            queue.changed = True

    def _lease_clock(self) -> LeaseClock:
        return boot_clock() if self._clock is None else manual_clock(self._clock)

    def announce(self) -> None:
        """Wake the threads of this process that wait for a change."""
        with self._arrival:
            self._changes += 1
            self._arrival.notify_all()

    def poll(self, look: Callable[[], R | None], wait: float) -> R | None:
        """Look every 1 to 20 ms, and whenever a thread of this process changed something, for so long."""
        changes = 0

        def noted() -> R | None:
            nonlocal changes
            changes = self._changes
            return look()

        return poll_until(noted, wait, longest=_LONGEST_PAUSE, sleep=lambda left: self._doze(changes, left))

    def _doze(self, changes: int, seconds: float) -> None:
        """Wait for so long, or until a thread of this process changed something after `changes`."""
        with self._arrival:
            if self._changes == changes:
                self._arrival.wait(seconds)

    def exists(self) -> bool:
        """Return whether the file has the queue; makes neither."""
        self._check_usable()
        if not Path(self._path).exists():
            return False
        if self._commits is not None:  # another program may have removed it meanwhile
            return self._use(lambda commits: commits.look(lambda store: self._name in store.names()))
        with self.opening:
            store = QueueStore(StoreFile(self._path, self._lease_clock(), timeout=self._timeout), shared=True)
            try:
                with named_errors(self._path), store.reading():
                    return self._name in store.names()
            finally:
                store.file.close()

    def close(self) -> None:
        """Release the file; the next call opens it again."""
        with self.opening:
            commits, self._commits = self._commits, None
            if commits is not None:
                commits.close()

    # --- forks ---

    def _check_usable(self) -> None:
        if _left_in_use and self._path in _left_in_use:
            raise WrongProcessError(
                f"another thread used {self._path!r} when this process was forked, and SQLite takes its "
                "locks for this process's own: fork while no call is under way, or start the process by spawn"
            )

    def hold_for_fork(self) -> None:
        """Have no thread use the file until `continue_in_parent` or `leave_behind`, if that is possible.

        SQLite keeps one account of a file's locks for all connections of a process. With the parent's in
        it, a child's own take no locks: others remove the log that it writes to, and its items with it. So
        the child closes the parent's connection first, which must not be at work then.
        """
        lock = self.opening if self._commits is None else self._commits.at_work
        if lock.acquire(timeout=_FORK_WAITS):
            self._held = lock

    def continue_in_parent(self) -> None:
        """Let threads use the file again."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def leave_behind(self) -> None:
        """Begin again in a forked child, without the parent's connection."""
        commits, held = self._commits, self._held
        self._start()
        if held is None:
            _left_in_use.add(self._path)
            _inherited.append(commits)
        elif commits is not None:
            with contextlib.suppress(Exception):  # the next call opens the file, and raises what is wrong
                commits.close_held()


_open: "WeakSet[OpenedQueue]" = WeakSet()
_fork = threading.Lock()  # one thread forks at a time
_forking: list[OpenedQueue] = []
# Of a forked child's parent: files, and connections, that another thread was using.
_left_in_use: set[str] = set()
_inherited: list[GroupCommit | None] = []


def _hold() -> None:
    _fork.acquire()
    _forking[:] = _open
    for queue in _forking:
        queue.hold_for_fork()


def _continue_in_parent() -> None:
    for queue in _forking:
        queue.continue_in_parent()
    _forking.clear()
    _fork.release()


def _leave_behind() -> None:
    for queue in _forking:
        queue.leave_behind()
    _forking.clear()
    _fork.release()


os.register_at_fork(before=_hold, after_in_parent=_continue_in_parent, after_in_child=_leave_behind)


def _queue(store: QueueStore, name: str) -> QueueRow:
    try:
        return store.queue(name)
    except QueueNotFoundError as error:
        raise QueueUnavailableError(f"queue {name!r} was removed from {store.file.path!r}") from error
