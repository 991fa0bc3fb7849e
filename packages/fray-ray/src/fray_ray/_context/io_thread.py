"""The thread on which Ray records what happened: what must, and what must not, run on it.

Ray 2.60 aborts a program in which one thread cancels a task while this one books its end (`Check failed:
it != submissible_tasks_.end()`, `submitted_task_ref_count > 0`), so tasks are cancelled on it. What is the
user's may wait for other tasks, for which everything on it would wait as well: `_waiting_threads` runs that.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import ray

from fray_ray._ray_internals.calls import on_ready

T = TypeVar("T")

_LONGEST_TURN = 60.0  # seconds; what runs there takes microseconds

# The identity of Ray's thread, while it calls us. A callback puts it there before it makes any object: with
# an object the collector may come, and a finalizer.
_io: set[int] = set()
_lock = threading.RLock()  # a finalizer may come in between
_there: dict[tuple[str, str], Any] = {}


def on_io_thread(act: Callable[[], T]) -> T:
    """Call a function on Ray's thread and return what it returns; it must not wait for anything of Ray's."""
    if threading.get_ident() in _io:
        return act()
    outcome: Future[T] = Future()

    def call() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller
            outcome.set_exception(error)

    soon_on_io_thread(call)
    return outcome.result(_LONGEST_TURN)


def soon_on_io_thread(act: Callable[[], None]) -> None:
    """Have a function called on Ray's thread, and do not wait for it: right for finalizers."""
    # Not with the value, which Ray unpickles under the lock of all unpickling: who holds it may wait for a
    # task, for which Ray's thread would have to go on.
    on_ready(_ref_that_is_there(), settling(lambda _: act()))


def refuse_to_wait() -> None:
    """Raise RuntimeError on Ray's thread.

    A finalizer comes there, as on any thread, when its garbage is collected. Where it waited for Ray's
    thread, nothing would ever arrive again.
    """
    if threading.get_ident() in _io:
        raise RuntimeError(
            "the results of tasks cannot be waited for here: this finalizer was called on the thread that "
            "receives them; wait in a method that is called, or on a thread of its own"
        )


def _ref_that_is_there() -> Any:
    """Return a reference whose callbacks are called at once."""
    me = ray.get_runtime_context()
    key = me.get_job_id(), me.get_worker_id()
    with _lock:
        if key not in _there:
            _there.clear()
            _there[key] = ray.put(None)
        return _there[key]


def receiving(act: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap what Ray calls on its thread, or at once on this one."""
    here, on_io = threading.get_ident(), settling(act)

    def run(source: Any) -> None:
        if threading.get_ident() == here:
            act(source)
        else:
            on_io(source)

    return run


def settling(settle: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap what runs on Ray's thread, so that it is known there where it runs."""

    def run(source: Any) -> None:
        here = threading.get_ident()
        if here in _io:  # one within another
            settle(source)
            return
        _io.add(here)
        try:
            settle(source)
        finally:
            _io.discard(here)

    return run
