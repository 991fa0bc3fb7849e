"""`work` and `awork`: a pool in threads or processes, and one in the caller's event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from fray.queue import Queue
from fray_queue._work.calls import Function
from fray_queue._work.options import WorkOptions, WorkSummary
from fray_queue._work.processes import InProcess, packed_for_workers
from fray_queue._work.runners import CoroutineRunner, InThread, Invoker, ThreadRunner
from fray_queue._work.stopping import Flag, StopSignal, check_stop, stopped_by_sigterm
from fray_queue._work.worker_pool import WorkerPool

T = TypeVar("T")

_LAST_WAIT = 5.0  # seconds in which items are given back after a second interrupt


def work(
    queue: Queue[T],
    fn: Callable[..., object],
    *,
    concurrency: int = 1,
    batch: int = 1,
    linger: float = 0.0,
    time_limit: float | None = None,
    processes: bool = False,
    prefetch: int | None = None,
    lease_timeout: float = 60.0,
    retries: int = 0,
    retry_delay: float = 0.1,
    stop: StopSignal | None = None,
    stop_when_empty: bool = False,
    grace: float = 30.0,
    summary: WorkSummary | None = None,
) -> WorkSummary:
    """Call `fn(item)` for the queue's items in `concurrency` threads; then `done`, or `release` if it raises.

    If an item was pushed with `reply=True`, the return value of `fn` is the reply. One thread extends all
    leases while `fn` runs. An async function is run to its end in an event loop of its thread.

    It ends only for one of these reasons: `stop` is set, the process gets SIGTERM or Ctrl-C (in the main
    thread), `fn` raises SystemExit or KeyboardInterrupt (which is then raised here), the pool itself fails,
    as by a filter of the log (that is raised, too), or the queue is empty and `stop_when_empty` is set. A
    call to the queue that fails is repeated, ever less often, and each failure is logged. At the end, items
    under way have `grace` seconds to finish; then they go back to the queue.

    Args:
        batch: With 2 or more, `fn` gets a list of up to that many items. It returns None, or a list with a
            result for each item; an exception in that list fails its item. If it raises, all fail.
        linger: Seconds that a batch that is not full waits for more items, from its first item on.
        time_limit: Seconds that a call may take. If it takes longer, its items go back to the queue, and the
            attempt counts. A worker process is killed; the time that it takes to start does not count. A
            thread cannot be killed: its slot stays occupied until the function returns, which is logged.
        processes: Call `fn` in `concurrency` worker processes. `fn`, the items and the results are pickled.
            If a process ends after it took its items, they fail with a WorkerDiedError, as nobody knows how
            far it came. If it ends before, another one gets them. Signals to it are left to the pool.
        prefetch: The most items that are fetched before a slot is free. By default as many as are done in a
            fifth of a second, up to 500; none if the queue cannot take them back without counting an attempt.
        retries: Calls of `fn` after a failed one, before the item is released and its attempt counts.
        retry_delay: Seconds before an item that failed is tried again, under the same lease or another one.
            They double with each failure of the item, up to a minute. With 0 it is tried again at once.
        stop: An event (of `threading`, `asyncio` or `multiprocessing`), or a function that returns whether to
            stop.
        stop_when_empty: Return when the queue is empty; an item that another worker has leased keeps the pool
            running.
        summary: The object to count in, which another thread can read meanwhile. One pool counts in it at a
            time.
    """
    options = WorkOptions(
        concurrency=concurrency,
        batch=batch,
        linger=linger,
        time_limit=time_limit,
        prefetch=prefetch,
        lease_timeout=lease_timeout,
        retries=retries,
        retry_delay=retry_delay,
        stop_when_empty=stop_when_empty,
        grace=grace,
    )
    check_stop(stop)
    _check_queue_and_function(queue, fn)
    summary = WorkSummary() if summary is None else summary
    function = Function(fn, batched=batch > 1)
    invoker: Callable[[], AbstractContextManager[Invoker]] = (
        partial(InProcess, packed_for_workers(function)) if processes else partial(InThread, function)
    )
    stopping = Flag()
    signals = [stopping] if stop is None else [stopping, stop]
    pool = WorkerPool(queue, ThreadRunner(invoker), options, summary, signals)
    with stopped_by_sigterm(stopping):
        # In another thread: this one may have an event loop, and has to be free for signals.
        _run_apart(pool, stopping)
    if pool.errors:
        raise pool.errors[0]
    return summary


async def awork(
    queue: Queue[T],
    fn: Callable[..., Awaitable[object]],
    *,
    concurrency: int = 1,
    batch: int = 1,
    linger: float = 0.0,
    time_limit: float | None = None,
    prefetch: int | None = None,
    lease_timeout: float = 60.0,
    retries: int = 0,
    retry_delay: float = 0.1,
    stop: StopSignal | None = None,
    stop_when_empty: bool = False,
    grace: float = 30.0,
    summary: WorkSummary | None = None,
) -> WorkSummary:
    """Await `fn(item)` for the queue's items, `concurrency` of them at a time in this event loop; see `work`.

    A call beyond `time_limit` is cancelled. It handles no signals. If you set `stop`, calls under way have
    `grace` seconds. If you cancel `awork`, it cancels them and returns their items to the queue.
    """
    options = WorkOptions(
        concurrency=concurrency,
        batch=batch,
        linger=linger,
        time_limit=time_limit,
        prefetch=prefetch,
        lease_timeout=lease_timeout,
        retries=retries,
        retry_delay=retry_delay,
        stop_when_empty=stop_when_empty,
        grace=grace,
    )
    check_stop(stop)
    _check_queue_and_function(queue, fn)
    summary = WorkSummary() if summary is None else summary
    runner = CoroutineRunner(Function(fn, batched=batch > 1))
    pool = WorkerPool(queue, runner, options, summary, [] if stop is None else [stop])
    await pool.run()
    if pool.errors:
        raise pool.errors[0]
    return summary


def _check_queue_and_function(queue: object, fn: object) -> None:
    """Refuse what the pool could only fail with at every item."""
    if isinstance(queue, str):
        raise ValueError(f"work takes a queue, not its URL; open_queue({queue!r}) opens it")
    if not callable(fn):
        raise ValueError(f"work needs a function, got {fn!r}")


def _run(pool: WorkerPool, begin: threading.Event, stopping: Flag, ended: threading.Event) -> None:
    begin.wait()
    try:
        if not stopping.is_set():
            asyncio.run(pool.run())
    except BaseException as error:  # noqa: BLE001 - raised by `work`, in its caller's thread
        pool.errors.append(error)
    finally:
        ended.set()


def _run_apart(pool: WorkerPool, stopping: Flag) -> None:
    """Run a pool in a thread of its own, and wait in pieces: signals are seen in between."""
    # An interrupt may come before `start` returns, and leaves no sign of whether there is a thread.
    begin, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=_run, args=(pool, begin, stopping, ended), name="fray-work", daemon=True)
    # Not `join`: an interrupt in it makes Python 3.11 and 3.12 take the thread for ended.
    try:
        thread.start()
        begin.set()
        while not ended.wait(0.1):
            pass
    except BaseException:  # an interrupt: what is under way has its grace, unless there is another
        stopping.set()
        begun = begin.is_set()
        begin.set()  # it may have been interrupted, too
        if not begun:
            raise
        try:
            while not ended.wait(0.1):
                pass
        except BaseException:
            pool.hurry()
            ended.wait(_LAST_WAIT)
            raise
        raise
