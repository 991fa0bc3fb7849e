"""Work on a queue's items in threads until told to stop, and then end in time."""

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from fray import (
    FrayError,
    LeaseExpiredError,
    SpecError,
    UnsupportedError,
    WrongProcessError,
)
from fray.backend import check_seconds, kept_alive, retry_delays
from fray.queue import Lease, Queue
from fray_queue._checks import check_count
from fray_queue._errors import ForeignHostError, QueueExistsError, QueueNotFoundError, TokenError

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("fray.queue")
_LONGEST_DELAY = 60.0  # seconds before an item that failed many times is tried again
_LONGEST_PAUSE = 15.0  # seconds between two tries of a queue that fails
_LONGEST_WAIT = 1.0  # seconds of one waiting pop: how late a worker may notice that it is to stop
_PAUSES = 0.05, 2.0  # seconds, the first and the longest, between looks whether the queue is empty
_PATIENCE = 20  # times what a look takes: what costs little is looked at often, an object store seldom
# What a program asked for that no waiting mends, unless it was right before.
_WRONG = (
    ForeignHostError,
    QueueExistsError,
    QueueNotFoundError,
    SpecError,
    TokenError,
    UnsupportedError,
    WrongProcessError,
)


@dataclass
class WorkSummary:
    """What became of the items that `work` took."""

    done: int = 0
    failed: int = 0  # the function raised, retries included; the item went back
    lost: int = 0  # the lease ended before the function did; another worker has the item
    released: int = 0  # given back unfinished, because the grace period was over


class _Pool:
    """The threads of one `work` call and what they hold."""

    def __init__(
        self,
        queue: Queue[T],
        fn: Callable[[T], object],
        *,
        lease_timeout: float,
        retries: int,
        retry_delay: float,
        stop_when_empty: bool,
    ) -> None:
        self.queue, self.fn, self.lease_timeout = queue, fn, lease_timeout
        self.retries, self.retry_delay, self.stop_when_empty = retries, retry_delay, stop_when_empty
        self.summary = WorkSummary()
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self._held: dict[str, Lease[Any]] = {}
        self._lock = threading.Lock()
        self._looking = threading.Lock()  # held by the one idle thread that looks for the others, too
        self._empty = False
        self._answered = False  # whether the queue ever did

    def run(self) -> None:
        """Take and work on items until told to stop."""
        try:
            with self.caller() as call:
                while not self.stopping.is_set() and not self._empty:
                    answer = self._patiently(self._next)
                    if answer and answer[0] is not None:
                        self._work(answer[0], call)
        except BaseException as error:  # noqa: BLE001 - raised by `work`, in its caller's thread
            self.errors.append(error)
            self.stopping.set()

    def _next(self) -> Lease[Any] | None:
        lease = self.queue.pop(self.lease_timeout, wait=0.0 if self.stop_when_empty else _LONGEST_WAIT)
        return self._outwait() if lease is None and self.stop_when_empty else lease

    def _patiently(self, ask: Callable[[], R]) -> tuple[R] | None:
        """Ask the queue, again and again while it fails; None when told to stop meanwhile.

        A queue that never answered is another matter: there what was asked for is wrong, and raises.
        """
        for pause in retry_delays(longest=_LONGEST_PAUSE):
            try:
                answer = ask()
            except LeaseExpiredError:
                raise
            except Exception as error:
                if not self._answered and isinstance(error, _WRONG):
                    raise
                _log.warning("the queue failed, and is asked again: %s: %s", type(error).__name__, error)
            else:
                self._answered = True
                return (answer,)
            if self.stopping.wait(pause):
                break
        return None

    def _outwait(self) -> Lease[Any] | None:
        """Return an item that comes, or comes back; None when nothing is left, others' items included."""
        pause, longest = _PAUSES
        with self._looking:
            while not self._empty and not self.stopping.is_set():
                start = time.monotonic()
                lease = self.queue.pop(self.lease_timeout)
                if lease is not None:
                    return lease
                self._empty = self.queue.size() == 0
                took = time.monotonic() - start
                if not self._empty:
                    self.stopping.wait(pause)
                    pause = max(_PAUSES[0], min(longest, pause * 2, took * _PATIENCE))
        return None

    def _work(self, lease: Lease[Any], call: Callable[[Any], None]) -> None:
        with self._lock:
            self._held[lease.lease_id] = lease
        try:
            with kept_alive(self.queue, lease, self.lease_timeout):
                failure = self._call(lease, call)
        except BaseException:  # the function ends the program: the item is for others
            if self._let_go(lease):
                self._give_back(lease)
            raise
        if self._let_go(lease):
            self._settle(lease, failure)

    def _call(self, lease: Lease[Any], call: Callable[[Any], None]) -> Exception | None:
        failure: Exception | None = None
        for retry in range(1 + self.retries):
            if retry and self.stopping.wait(self._delay_after(lease, retry)):
                break
            try:
                call(lease.item)
            except Exception as error:  # noqa: BLE001 - whatever the function raises is that item's failure
                failure = error
                _log.warning(
                    "item %s failed: %s: %s", lease.item_id, type(error).__name__, error, exc_info=error
                )
            else:
                return None
        return failure

    def _settle(self, lease: Lease[Any], failure: Exception | None) -> None:
        try:
            if failure is None:
                settled = self._patiently(lambda: self.queue.done(lease))
                self._count("done" if settled else "lost")
            else:
                delay = self._delay_after(lease, 1 + self.retries)
                settled = self._patiently(lambda: self.queue.release(lease, delay=delay))
                self._count("failed" if settled else "lost")
        except LeaseExpiredError:
            _log.warning("item %s: its lease was lost while it was worked on", lease.item_id)
            self._count("lost")

    def _delay_after(self, lease: Lease[Any], calls: int) -> float:
        """Return the seconds that an item rests after so many calls under this lease, all of which failed."""
        failures = (lease.attempt - 1) * (1 + self.retries) + calls
        doublings = min(failures - 1, 64)  # a float holds that; the bound comes long before
        return min(_LONGEST_DELAY, self.retry_delay * 2.0**doublings)

    def _let_go(self, lease: Lease[Any]) -> bool:
        with self._lock:
            return self._held.pop(lease.lease_id, None) is not None

    def _count(self, what: str) -> None:
        with self._lock:
            setattr(self.summary, what, getattr(self.summary, what) + 1)

    def release_all(self) -> None:
        """Give back what is not finished; whoever still works on it finds its lease lost."""
        for lease in list(self._held.values()):
            if self._let_go(lease):
                self._give_back(lease)

    def _give_back(self, lease: Lease[Any]) -> None:
        with contextlib.suppress(FrayError, OSError):
            self.queue.release(lease)
            self._count("released")

    @contextlib.contextmanager
    def caller(self) -> Iterator[Callable[[Any], None]]:
        """Give what calls the function in this thread, and runs what an async one returns to its end."""
        with contextlib.ExitStack() as stack:
            runners: list[asyncio.Runner] = []

            def call(item: Any) -> None:
                result = self.fn(item)
                if inspect.isawaitable(result):
                    if not runners:
                        runners.append(stack.enter_context(asyncio.Runner()))
                    runners[0].run(_awaited(result))
                elif inspect.isgenerator(result) or inspect.isasyncgen(result):
                    raise TypeError(
                        f"{self.fn!r} is a generator function: nothing of it runs when it is called"
                    )

            yield call


async def _awaited(result: Any) -> None:
    await result


def work(
    queue: Queue[T],
    fn: Callable[[T], object],
    *,
    concurrency: int = 1,
    lease_timeout: float = 60.0,
    retries: int = 0,
    retry_delay: float = 0.1,
    stop_when_empty: bool = False,
    grace: float = 30.0,
) -> WorkSummary:
    """Call `fn(item)` for the queue's items in `concurrency` threads; `done` after, released when it raises.

    Leases are extended while `fn` runs. SIGTERM (where this is the main thread) stops the taking of items;
    those under way have `grace` seconds to finish, and go back to the queue after that. It ends for no other
    reason: a queue that fails is asked again, ever less often, and each time is logged. An async function is
    run to its end, in an event loop of its thread.

    Args:
        retries: Calls of `fn` after a failed one, before the item is released and its attempt counts.
        retry_delay: Seconds before an item that failed is tried again, by such a call or under another lease.
            They double with each failure of the item, up to a minute; with 0 it is tried again at once.
        stop_when_empty: Return when nothing is left, items that others lease included.
    """
    check_count("concurrency", concurrency)
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise ValueError(f"retries is a whole number, 0 or more; got {retries!r}")
    check_seconds("lease_timeout", lease_timeout)
    check_seconds("retry_delay", retry_delay, zero=True)
    check_seconds("grace", grace, zero=True)
    pool = _Pool(
        queue,
        fn,
        lease_timeout=lease_timeout,
        retries=retries,
        retry_delay=retry_delay,
        stop_when_empty=stop_when_empty,
    )
    with _stopped_by_sigterm(pool.stopping):
        _run_threads(pool, concurrency, grace)
    if pool.errors:
        raise pool.errors[0]
    return pool.summary


def _run_threads(pool: _Pool, concurrency: int, grace: float) -> None:
    # Daemons: a function that does not end within its grace must not keep the process.
    threads = [
        threading.Thread(target=pool.run, name=f"fray-work-{index}", daemon=True)
        for index in range(concurrency)
    ]
    for thread in threads:
        thread.start()
    try:
        while not pool.stopping.wait(0.1) and any(thread.is_alive() for thread in threads):
            pass
    finally:
        pool.stopping.set()
        _join(threads, grace)
        pool.release_all()


def _join(threads: list[threading.Thread], seconds: float) -> None:
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


@contextlib.contextmanager
def _stopped_by_sigterm(stopping: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
