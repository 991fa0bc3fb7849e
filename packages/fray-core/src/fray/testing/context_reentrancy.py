"""Calls from where nobody expects them: finalizers, signal handlers, callbacks, running loops."""

import asyncio
import contextlib
import gc
import math
import signal
import threading
from typing import Any

import pytest

from fray._contracts.context import JobContext
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures
from fray.testing.gates import PATIENCE
from fray.testing.interrupting import interrupted


class Cycle:
    """Garbage for the collector, which runs a task when it is found; the collector chooses where."""

    def __init__(self, context: JobContext, made: list[Any]) -> None:
        self.itself, self.context, self.made = self, context, made

    def __del__(self) -> None:
        self.made.append(self.context.run(tasks.add, 1))
        with contextlib.suppress(RuntimeError):  # where the wait could never end
            self.context.get(self.made[-1])


async def add_soon(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


class ReentrancyContract(ContextFixtures):
    """Every call may be made from a finalizer, a signal handler or a callback."""

    INTERRUPTIONS = 25
    """Lines of a program at which a call is interrupted by another."""

    def test_finalizers_run_tasks_and_get_their_results(self, context: JobContext) -> None:
        if not self.can.reentrant:
            self.moot("reentrant")
            return
        made: list[Any] = []
        threshold = gc.get_threshold()
        gc.set_threshold(7)
        try:
            for number in range(300):
                Cycle(context, made)
                ref = context.run(tasks.add, number)
                assert context.get([context.run(tasks.add, ref), ref]) == [number + 2, number + 1]
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert set(context.get(made)) == {2}

    def test_finalizers_come_where_futures_are_made_and_settled(self, context: JobContext) -> None:
        if not self.can.reentrant:
            self.moot("reentrant")
            return
        made: list[Any] = []
        executor = context.as_executor()
        threshold = gc.get_threshold()
        gc.set_threshold(5)
        try:
            for number in range(50):
                Cycle(context, made)
                futures = [executor.submit(tasks.add, number), executor.submit(tasks.add, number + 1)]
                assert [future.result(60) for future in futures] == [number + 1, number + 2]
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert set(context.get(made)) == {2}

    def test_a_signal_handler_runs_tasks_and_gets_their_results(self, context: JobContext) -> None:
        if not self.can.reentrant or not hasattr(signal, "setitimer"):
            self.moot("reentrant")
            return
        made: list[Any] = []

        handled = threading.Event()
        handled.set()

        def handle(_number: int, _frame: Any) -> None:
            made.append(context.run(tasks.add, 1))
            with contextlib.suppress(RuntimeError):
                context.wait([made[-1]], timeout=0.5)
            handled.set()

        main = threading.main_thread().ident
        assert main is not None
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.002):
                if handled.is_set():  # or handlers would interrupt handlers faster than these end
                    handled.clear()
                    signal.pthread_kill(main, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handle)
        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            number = 0
            while number < 300 or not made:
                ref = context.run(tasks.add, number)
                assert context.get(context.run(tasks.add, ref)) == number + 2
                number += 1
        finally:
            stop.set()
            disturber.join()
            signal.signal(signal.SIGUSR1, before)
        assert set(context.get(made)) == {2}

    def test_a_call_may_interrupt_another_of_its_thread(self, context: JobContext) -> None:
        if not self.can.reentrant:
            self.moot("reentrant")
            return
        refs: list[Any] = []
        actors: list[Any] = []

        def call() -> None:
            refs.append(context.run(tasks.add, 1))
            actor = context.create_actor(tasks.Counter, 2)
            refs.append(actor.value())
            actors.append(actor)
            context.kill(context.create_actor(tasks.Counter, name="shared", get_if_exists=True))

        call()  # the first one imports what is needed
        lines = interrupted(call, call, 0)
        for step in range(self.INTERRUPTIONS):
            interrupted(call, call, 1 + lines * step // self.INTERRUPTIONS)
        assert context.get(refs, timeout=PATIENCE) == [2] * len(refs)
        assert len(refs) == 4 + 4 * self.INTERRUPTIONS

    def test_a_callback_of_a_future_uses_the_context(self, context: JobContext) -> None:
        with context.as_executor() as executor:
            done, found = threading.Event(), []

            def call_back(future: Any) -> None:
                found.append(context.get(context.run(tasks.add, future.result()), timeout=PATIENCE))
                done.set()

            executor.submit(tasks.add, 1).add_done_callback(call_back)
            assert done.wait(60)
        assert found == [3]

    def test_an_async_task_inside_a_running_loop(self, context: JobContext) -> None:
        async def main() -> int:
            return context.get(context.run(add_soon, 1))

        assert asyncio.run(main()) == 2

    @pytest.mark.parametrize("timeout", [math.inf, 1e300])
    def test_a_timeout_may_be_endless(self, context: JobContext, timeout: float) -> None:
        ref = context.run(tasks.add, 1)
        assert context.get(ref, timeout=timeout) == 2
        assert context.get([context.run(tasks.add, 2)], timeout=timeout) == [3]
        assert context.wait([context.run(tasks.add, 3)], timeout=timeout)[1] == []
