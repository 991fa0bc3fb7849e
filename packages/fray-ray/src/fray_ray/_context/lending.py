"""The CPU of a task, lent to others while the task waits for them.

Ray lends a worker's CPU while the worker's main thread blocks in `ray.get` or `ray.wait`, and for no other
thread. So what waits for references beside the main thread (a thread of the task's own, a future, a
coroutine) registers here, and a main thread that waits for another thread is made to wait in Ray meanwhile.
"""

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import ray
from ray import exceptions as rx

from fray_ray._ray_internals.processes import runs_tasks

_SIGNAL = signal.SIGURG  # which does nothing where nobody listens to it
_LOOK = 0.05  # seconds between looks at what the main thread does
_LEND = 0.25  # seconds that the main thread stays in Ray at most, for it may have its own work again
_LINGER = 20  # looks for which the thread that looks stays when nobody waits
_WAITS = {"wait", "join", "_wait_for_tstate_lock"}  # functions of `threading` that wait for another thread

_main = threading.main_thread()
_lock = threading.RLock()  # a finalizer may come in between
_awaited: Counter[Any] = Counter()  # the references that are waited for beside the main thread
_wakers: list[Callable[[], object]] = []  # of the event loops that run; the last one has the main thread
_lends = False  # whether the main thread of this worker can be made to wait in Ray
_lender: threading.Thread | None = None


def prepare() -> bool:
    """Be ready to lend the CPU of what this worker runs; called on its main thread.

    Returns:
        Whether it is ready now and was not before.
    """
    global _lends
    if _lends or not runs_tasks() or not is_main():
        return False
    if signal.getsignal(_SIGNAL) is signal.SIG_DFL:
        signal.signal(_SIGNAL, _wait_in_ray)
        _lends = True
    return _lends


def is_main() -> bool:
    """Whether this is the main thread, for which alone Ray lends the CPU."""
    return threading.get_ident() == _main.ident


def is_beside() -> bool:
    """Whether the waiting thread has to register: a thread beside the main thread of a worker's task."""
    return bool(_lends or _wakers) and not is_main()


@contextlib.contextmanager
def awaiting(refs: Iterable[Any]) -> Iterator[None]:
    """Register that this thread waits for references."""
    if not is_beside():
        yield
        return
    waited = [ref for ref in refs if isinstance(ref, ray.ObjectRef)]
    note(waited)
    try:
        yield
    finally:
        forget(waited)


def note(refs: Iterable[Any]) -> None:
    """Record that a thread waits for references, until `forget`."""
    if not (_lends or _wakers):
        return
    with _lock:
        _awaited.update(refs)
    if not is_main():
        for wake in _wakers[-1:]:
            wake()
    _start_lender()


def forget(refs: Iterable[Any]) -> None:
    """Undo `note`; harmless where it recorded nothing."""
    with _lock:
        for ref in refs:
            _awaited[ref] -= 1
            if _awaited[ref] <= 0:
                del _awaited[ref]


def awaited() -> list[Any]:
    """Return the references that are waited for beside the main thread; of several, those not ready, if any.

    One that is ready may be waited for together with others: a wait in Ray for any of them would end at once.
    """
    refs = list(_awaited)
    if len(refs) <= 1:
        return refs
    return ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[1] or refs


@contextlib.contextmanager
def waking(wake: Callable[[], object]) -> Iterator[None]:
    """Have a function called when references are waited for: by an event loop on the main thread, which waits
    for them itself."""
    _wakers.append(wake)
    try:
        yield
    finally:
        _wakers.pop()


def _start_lender() -> None:
    global _lender
    if not _lends:
        return
    with _lock:
        if _lender is not None:
            return
        _lender = threading.Thread(target=_lend, name="fray-lender", daemon=True)
        _lender.start()


def _lend() -> None:
    """Check the main thread for as long as another thread waits."""
    global _lender
    idle = 0
    while True:
        time.sleep(_LOOK)
        with _lock:
            idle = 0 if _awaited else idle + 1
            if idle > _LINGER:
                _lender = None
                return
        frame = sys._current_frames().get(_main.ident or 0)
        if not idle and _waits(frame) and signal.getsignal(_SIGNAL) is _wait_in_ray:
            signal.pthread_kill(_main.ident or 0, _SIGNAL)
        del frame


def _waits(frame: FrameType | None) -> bool:
    """Whether a thread that runs this frame waits for another thread."""
    if frame is None or frame.f_code.co_name not in _WAITS:
        return False
    return frame.f_code.co_filename == threading.__file__


def _wait_in_ray(_: int, frame: FrameType | None) -> None:
    """Wait, on the main thread, for what is waited for beside it."""
    if not _waits(frame):
        return
    with contextlib.suppress(rx.RayError, ValueError):  # the call that waits for them sees it
        if refs := awaited():
            ray.wait(refs, num_returns=1, timeout=_LEND, fetch_local=False)
