"""Places of a pool of threads that tasks hold while they wait for threads of their own."""

import threading
from queue import SimpleQueue

import pytest

from fray import GetTimeoutError, create_context


def test_a_task_that_waits_for_many_threads_frees_its_own_place_and_no_more() -> None:
    lock, inside, most = threading.Lock(), 0, 0
    gate: SimpleQueue[None] = SimpleQueue()  # a wait that the pool does not take for one for a thread
    has_waited = threading.Semaphore(0)
    count = 5

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        gate.get(timeout=60)
        with lock:
            inside -= 1

    def submit() -> None:
        ref = context.run(work)
        with pytest.raises(GetTimeoutError):  # meanwhile it looks again and again for a place to free
            context.get(ref, timeout=0.5)
        has_waited.release()
        context.get(ref, timeout=60)

    def outer() -> None:
        threads = [threading.Thread(target=submit) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with create_context("threadpool", max_workers=1) as context:
        ref = context.run(outer)
        for _ in range(count):
            assert has_waited.acquire(timeout=60)
        for _ in range(count):
            gate.put(None)
        context.get(ref, timeout=60)
    assert most == 1
