"""Ctrl-C in a call of a context, at each point at which the interpreter runs signal handlers.

A notebook goes on after it: the context must work, and its end must wait for nothing that cannot come.
"""

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from fray import ActorDiedError, TaskCancelledError, create_context
from fray.testing.deadline import deadline
from fray.testing.gates import Gate
from fray.testing.interrupting import interrupted, struck
from fray.testing.tasks import add

# What strikes a generator in its finalizer is only reported.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def items(count: int) -> Iterator[int]:
    yield from range(count)


class Counter:
    def __init__(self) -> None:
        self.total = 0

    def increment(self, by: int = 1) -> int:
        self.total += by
        return self.total

    def items(self, count: int) -> Iterator[int]:
        yield from range(count)

    def wait(self, begun: Event, gate: Event) -> None:
        begun.set()
        gate.wait(60)


class Case:
    """A context, a counter, a stream, and a task that waits until it is released."""

    def __init__(self, spec: str) -> None:
        self.context: Any = create_context(spec)
        self.counter = self.context.create_actor(Counter)
        self.context.get(self.counter.increment())
        self.stream = self.context.run(items, 40)
        self.gate = Event()
        self.pending = self.context.run(self.gate.wait, 60) if spec != "sync" else 1
        self.open_calls: list[Any] = []
        self.fresh: Any = None

    def check(self) -> None:
        """Look that it works, and ends."""
        self.gate.set()
        assert self.context.get(self.context.run(add, 1, 1)) == 2
        self.context.shutdown()


def strike(
    spec: str,
    call: Callable[[Case], Any],
    check: Callable[[Case], Any] = Case.check,
    before: Callable[[Case], Any] = lambda _: None,
) -> None:
    """Interrupt a call at each of its points, each time in another context, and check that afterwards."""
    cases: list[Case] = []  # kept, so that no finalizer of one is struck in the next
    gc.collect()

    def once(point: int) -> int:
        with deadline(30):
            case, points = Case(spec), 0
            cases.append(case)
            before(case)
            with contextlib.suppress(KeyboardInterrupt):
                points = struck(lambda: call(case), point, "fray")
            check(case)
        return points

    points = once(0)
    assert points > 3
    for point in range(1, points + 1):
        once(point)


SUBMISSIONS: dict[str, Callable[[Case], Any]] = {
    "a task": lambda case: case.context.run(add, 1, 1),
    "a task that waits for another": lambda case: case.context.run(add, case.pending, 1),
    "a stream": lambda case: case.context.run(items, 3),
    "a call of an actor": lambda case: case.counter.increment(),
    "a call of an actor that waits": lambda case: case.counter.increment(case.pending),
    "a stream of an actor": lambda case: case.counter.items(3),
    "an actor": lambda case: case.context.create_actor(Counter),
}


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
@pytest.mark.parametrize("submission", SUBMISSIONS)
def test_what_was_being_submitted_is_waited_for_by_nobody(spec: str, submission: str) -> None:
    def check(case: Case) -> None:
        case.gate.set()
        case.context.get(case.counter.increment())  # not behind a call that never comes
        case.check()

    strike(spec, SUBMISSIONS[submission], check)


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_the_name_of_an_actor_that_was_being_made_is_no_ones_or_one_that_answers(spec: str) -> None:
    def check(case: Case) -> None:
        again = case.context.create_actor(Counter, name="counter", get_if_exists=True)
        assert case.context.get(again.increment()) == 1
        case.check()

    strike(spec, lambda case: case.context.create_actor(Counter, name="counter"), check)


@pytest.mark.parametrize("spec", ["sync", "threadpool?stream_buffer=1"])
@pytest.mark.parametrize("of_actor", [False, True])
def test_a_stream_goes_on_or_says_that_it_was_interrupted(spec: str, of_actor: bool) -> None:
    def read(case: Case) -> None:
        if of_actor:
            case.stream = case.counter.items(4)
        for _ in range(2):
            next(case.stream, None)

    def check(case: Case) -> None:
        with contextlib.suppress(KeyboardInterrupt, TaskCancelledError):
            case.context.get(list(case.stream))
        case.check()

    strike(spec, read, check)


def test_an_actor_that_was_being_killed_has_answered_every_call() -> None:
    def check(case: Case) -> None:
        case.context.kill(case.counter)  # where it came before anything was done
        for ref in [*case.open_calls, *case.stream]:
            with pytest.raises(ActorDiedError):
                case.context.get(ref)
        case.check()

    def kill(case: Case) -> None:
        case.context.kill(case.counter)

    def before(case: Case) -> None:
        begun = Event()
        case.open_calls = [case.counter.wait(begun, case.gate), case.counter.increment()]
        case.stream = case.counter.items(3)
        assert begun.wait(60)  # so that no other call can run before the actor is dead

    strike("threadpool", kill, check, before)


@pytest.mark.parametrize("size", [1, 2])
def test_a_pool_whose_thread_was_being_started_has_as_many_as_it_should(size: int) -> None:
    def first(case: Case) -> None:
        case.fresh.run(add, 1, 1)

    def check(case: Case) -> None:
        refs = [case.fresh.run(abs, -number) for number in range(4)]
        assert case.fresh.get(refs) == [0, 1, 2, 3]
        case.fresh.shutdown()
        case.check()

    def before(case: Case) -> None:
        case.fresh = create_context("threadpool", max_workers=size)

    strike("sync", first, check, before)


@pytest.mark.parametrize("spec", ["sync", "threadpool?max_workers=1"])
@pytest.mark.parametrize("cancel", [False, True])
def test_a_second_shutdown_ends_what_the_first_did_not(spec: str, cancel: bool) -> None:
    def end(case: Case) -> None:
        case.context.shutdown(cancel_pending=cancel)

    def check(case: Case) -> None:
        case.context.shutdown(cancel_pending=True)

    def before(case: Case) -> None:
        case.gate.set()
        case.context.get(case.pending)

    strike(spec, end, check, before)


@pytest.mark.timeout(100)
def test_ctrl_c_while_the_event_loop_is_woken_leaves_it_one_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a socket does not take at once is sent by the loop, which has to be woken for it."""
    write = os.write
    begun, gate = Gate(tmp_path / "begun"), Gate(tmp_path / "gate")

    def wait() -> None:
        begun.open()
        gate.wait()

    def interrupt(descriptor: int, data: bytes) -> int:
        if threading.current_thread() is threading.main_thread():
            monkeypatch.undo()
            raise KeyboardInterrupt
        return write(descriptor, data)

    def capture(large: bytes) -> Callable[[], int]:
        return lambda: len(large)

    with create_context("process", max_workers=2) as context:
        context.get([context.run(abs, -1), context.run(abs, -1)])
        waiting = context.run(wait)
        begun.wait()
        monkeypatch.setattr(os, "write", interrupt)
        with contextlib.suppress(KeyboardInterrupt):  # which does not come where the loop is awake
            context.cancel(waiting)
        try:
            for size in range(3_000_000, 3_000_003):  # a timer of the loop sends one on in any case
                assert context.get(context.run(capture(bytes(size))), timeout=60) == size
        finally:
            gate.open()


class TooLongError(Exception):
    pass


def test_what_the_handler_of_a_signal_raises_is_never_lost_in_a_context_of_processes() -> None:
    """At any line of the owner's code it comes out of the call, and every task ends."""

    def ring(number: int, frame: Any) -> None:
        raise TooLongError

    def submit(visit: Callable[[], Any], line: int) -> int:
        return interrupted(lambda: refs.append(context.run(abs, -1)), visit, line, module="fray_local")

    refs: list[Any] = []
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with deadline(60), create_context("process", max_workers=1) as context:
            context.get(context.run(abs, -1))
            for line in range(1, submit(lambda: None, 10_000) + 1):
                with pytest.raises(TooLongError):
                    submit(lambda: signal.raise_signal(signal.SIGUSR1), line)
            assert set(context.get(refs)) == {1}
    finally:
        signal.signal(signal.SIGUSR1, before)
