"""Threads that are there while there are calls, also when the interpreter's lock comes to them late."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from fray.backend import BriefThreads

_LONGER_THAN_IDLE = 0.5  # seconds; a thread waits less for another call


@pytest.fixture(autouse=True)
def nobody_is_interrupted() -> Iterator[None]:
    """A thread has the interpreter's lock until it waits for something."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(interval)


def keep_the_interpreter() -> threading.Thread:
    """Let no other thread run while one that is idle should end; return the thread that this is."""
    end = time.monotonic() + _LONGER_THAN_IDLE
    while time.monotonic() < end:
        pass
    return threading.current_thread()


def make_idle(threads: BriefThreads) -> threading.Thread:
    """Return one of the threads, which has had a call and waits: with its result alone this goes on."""
    return threads.submit(threading.current_thread).result(30)


def test_a_thread_that_wakes_for_a_call_which_another_took_ends_nevertheless() -> None:
    threads = BriefThreads(2, "brief")
    followers: list[Future[threading.Thread]] = []

    def call() -> threading.Thread:
        idle = make_idle(threads)
        followers.append(threads.submit(keep_the_interpreter))  # wakes the other; this may be there first
        return idle

    idle = threads.submit(call).result(30)
    for thread in (followers[0].result(30), idle):
        thread.join(10)
        assert not thread.is_alive()


def test_a_call_that_comes_when_its_thread_was_about_to_end_is_done_by_it() -> None:
    threads = BriefThreads(1, "brief")
    idle = make_idle(threads)
    keep_the_interpreter()
    assert threads.submit(threading.current_thread).result(30) is idle
    idle.join(10)
    assert not idle.is_alive()


def test_calls_beyond_the_number_of_threads_are_done_in_turn() -> None:
    threads = BriefThreads(2, "brief")
    begun, gate, order = threading.Barrier(3), threading.Event(), list[int]()

    def hold() -> threading.Thread:
        begun.wait(30)
        gate.wait(30)
        return threading.current_thread()

    def note(number: int) -> threading.Thread:
        order.append(number)
        return threading.current_thread()

    held = [threads.submit(hold) for _ in range(2)]
    begun.wait(30)
    noted = [threads.submit(partial(note, number)) for number in range(10)]
    gate.set()
    ran = {future.result(30) for future in held}
    assert {future.result(30) for future in noted} <= ran
    assert order == list(range(10))
    for thread in ran:
        thread.join(10)
        assert not thread.is_alive()
