"""What the contexts of this process promise beyond the contract."""

import contextvars
import gc
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from fray import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorNotFoundError,
    DeadlockError,
    ObjectRef,
    TaskOptions,
    WrongProcessError,
    create_context,
    get_job_context,
)
from fray.backend import settle_value, watch_for
from fray.testing.gates import until
from fray.testing.interrupting import interrupted
from fray.testing.tasks import Counter, add


def stream() -> Iterator[int]:
    yield 1


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_context_variables_follow_into_tasks_streams_and_actors(spec: str) -> None:
    class Reader:
        def read(self) -> str:
            return VARIABLE.get()

    def items() -> Iterator[object]:
        yield VARIABLE.get()
        yield VARIABLE.get()

    def change() -> None:
        VARIABLE.set("changed")

    with create_context(spec) as context:
        reader = context.create_actor(Reader)
        token = VARIABLE.set("mine")
        refs = [context.run(VARIABLE.get), reader.read(), *context.run(items)]
        context.get(context.run(change))
        assert context.get(refs) == ["mine"] * 4
        assert VARIABLE.get() == "mine"
        VARIABLE.reset(token)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_nesting_wide_and_deep_ends_at_any_size(workers: int) -> None:
    def tree(depth: int) -> int:
        context = get_job_context()
        return 1 if depth == 0 else sum(context.get([context.run(tree, depth - 1) for _ in range(3)]))

    with create_context("threadpool", max_workers=workers) as context:
        assert context.get(context.run(tree, 5)) == 3**5


def test_a_pool_that_grew_to_nest_shrinks_again() -> None:
    def nest(depth: int) -> int:
        context = get_job_context()
        return 0 if depth == 0 else 1 + context.get(context.run(nest, depth - 1))

    with create_context("threadpool?max_workers=2") as context:
        before = threading.active_count()
        assert context.get(context.run(nest, 200)) == 200
        until(lambda: threading.active_count() <= before + 2, "the extra threads end")


def test_at_most_max_workers_tasks_run_at_once() -> None:
    lock, inside, most = threading.Lock(), 0, 0
    barrier = threading.Barrier(3)

    def enter() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        barrier.wait(timeout=60)  # three run together, or this breaks
        with lock:
            inside -= 1

    with create_context("threadpool?max_workers=3") as context:
        context.get([context.run(enter) for _ in range(30)])
    assert most == 3


def test_an_actor_that_nobody_can_call_any_more_ends_and_its_thread_too() -> None:
    with create_context("threadpool") as context:
        before = threading.active_count()
        counters = [context.create_actor(Counter) for _ in range(10)]
        last = [counter.increment() for counter in counters]
        assert context.get(last) == [1] * 10
        assert threading.active_count() == before + 10
        del counters, last
        gc.collect()
        until(lambda: threading.active_count() == before, "the threads of dropped actors end")


def test_an_actor_ends_whose_stream_was_dropped_too() -> None:
    with create_context("threadpool") as context:
        before = threading.active_count()
        counter = context.create_actor(Counter, 100)
        stream = counter.countdown()
        assert context.get(next(stream)) == 100
        del counter, stream
        until(lambda: threading.active_count() == before, "the thread of the dropped actor ends")


def test_values_are_freed_with_their_last_reference() -> None:
    class Value:
        pass

    with create_context("threadpool") as context:
        makers: list[Callable[[], ObjectRef[Value]]] = [
            lambda: context.put(Value()),
            lambda: context.run(Value),
        ]
        for make in makers:
            ref = make()
            alive = weakref.ref(context.get(ref))
            assert alive() is not None
            del ref
            gc.collect()
            until(lambda: alive() is None, "the value is freed")  # noqa: B023 - called at once


def test_a_reference_does_not_travel_to_another_process() -> None:
    with create_context("threadpool") as context:
        import pickle

        for thing in (context, context.put(1), context.create_actor(Counter)):
            done = subprocess.run(
                [sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"],
                input=pickle.dumps(thing),
                capture_output=True,
                check=False,
            )
            assert "WrongProcessError" in done.stderr.decode()
            assert "get_job_context()" in done.stderr.decode()


@pytest.mark.parametrize("spec", ["threadpool", "process"])
def test_what_is_pickled_by_identity_has_one_name_however_often(spec: str) -> None:
    import pickle

    with create_context(spec) as context:
        for thing in (context, context.put(1), context.create_actor(Counter), context.run(stream)):
            pickles = {pickle.dumps(thing) for _ in range(10)}
            assert len(pickles) == 1
            assert pickle.loads(pickles.pop()) == thing


def test_a_pickle_outlives_no_reference() -> None:
    import pickle

    with create_context("threadpool") as context:
        data = pickle.dumps(context.put(1))
        gc.collect()
        with pytest.raises(WrongProcessError, match="last reference"):
            pickle.loads(data)


def test_inline_an_actor_that_waits_for_itself_gets_an_error() -> None:
    class Narcissus:
        def __init__(self, name: str) -> None:
            self.name = name

        def outer(self) -> int:
            context = get_job_context()
            return int(context.get(context.get_actor(self.name).inner()))

        def inner(self) -> int:
            return 1

    with create_context("sync") as context:
        actor = context.create_actor(Narcissus, kwargs={"name": "me"}, name="me")
        with pytest.raises(DeadlockError, match="one call at a time"):
            context.get(actor.outer())
        assert context.get(actor.inner()) == 1


def test_ctrl_c_inside_an_inline_task_ends_the_program_and_not_the_task_alone() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with create_context("sync") as context, pytest.raises(KeyboardInterrupt):
        context.run(interrupted)


def test_a_program_that_ends_without_leaving_its_context_gets_its_work_done() -> None:
    code = """
from fray import get_job_context
import threading
gate = threading.Event()
def work():
    gate.wait()
    print("done", flush=True)
get_job_context().run(work)
gate.set()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "two"])
def test_a_wrong_number_of_workers_is_refused(workers: object) -> None:
    with pytest.raises(ValueError, match="max_workers"):
        create_context("threadpool", max_workers=workers)


@pytest.mark.parametrize("spec", ["sync", "threadpool", "process"])
def test_what_is_not_called_is_neither_a_task_nor_an_actor(spec: str) -> None:
    with create_context(spec) as context:
        with pytest.raises(ValueError, match="a task needs a function, got 'tally'"):
            context.run("tally")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="an actor needs a class, got 'tally'"):
            context.create_actor("tally")  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_a_task_of_an_executor_may_submit_to_the_same_executor(spec: str) -> None:
    ended: Future[int] = Future()

    def program() -> None:
        with create_context(spec) as context, context.as_executor() as executor:
            outer = executor.submit(lambda: executor.submit(len, "abc").result())
            ended.set_result(outer.result())

    # On a thread of its own: a deadlock fails this test and not the run.
    threading.Thread(target=program, daemon=True).start()
    assert ended.result(timeout=60) == 3


@pytest.mark.parametrize("ordered", [True, False])
def test_ctrl_c_while_a_map_waits_cancels_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    gate, ran = threading.Event(), list[int]()
    with create_context("threadpool", max_workers=1) as context:
        context.run(gate.wait)
        values = context.map(ran.append, [1, 2], ordered=ordered)
        with monkeypatch.context() as patch:
            patch.setattr(context, "get", interrupted)
            patch.setattr(context, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(values)
        gate.set()
    assert ran == []


def test_the_future_of_a_stream_is_done_and_cannot_be_cancelled() -> None:
    with create_context("threadpool") as context:
        future = context.as_executor().submit(lambda: (yield "item"))
        assert not future.cancel()
        assert [context.get(item) for item in future.result()] == ["item"]


def test_num_cpus_says_how_many_tasks_run_at_once_where_max_workers_does_not() -> None:
    for workers, cpus, most in ((None, 1, 1), (None, 3, 3), (2, 1, 2)):
        with create_context("threadpool", memory="1g", num_cpus=cpus, max_workers=workers) as context:
            lock, running, seen = threading.Lock(), [0], [0]
            together = threading.Barrier(most)

            def run(together=together, lock=lock, running=running, seen=seen) -> None:  # type: ignore[no-untyped-def]
                with lock:
                    running[0] += 1
                    seen[0] = max(seen[0], running[0])
                together.wait(60)
                with lock:
                    running[0] -= 1

            context.get([context.run(run) for _ in range(6)])
            assert seen[0] == most


@pytest.mark.parametrize("spec", ["sync", "threadpool", "process"])
@pytest.mark.parametrize(
    ("option", "wrong"),
    [("num_cpus", -1), ("num_cpus", math.nan), ("memory", "lots"), ("memory", -1), ("namespace", 5)],
    ids=str,
)
def test_a_portable_option_that_is_no_value_is_refused_alike(spec: str, option: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=option):
        create_context(spec, **{option: wrong})


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_memory_and_cpus_are_hints_in_one_process(spec: str) -> None:
    with create_context(spec, memory="1k", num_cpus=0.5, max_workers=2) as context:
        assert context.get(context.run(len, b"x" * 1_000_000)) == 1_000_000
        options = TaskOptions(resources={"memory": 1e15, "CPU": 64})
        assert context.get(context.create_task(add, 1, options=options)) == 2


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_max_retries_is_for_lost_workers_and_no_task_here_runs_twice(spec: str) -> None:
    runs: list[int] = []

    def fail() -> None:
        runs.append(1)
        raise OSError("of the task")

    with create_context(spec, max_retries=3) as context, pytest.raises(OSError, match="of the task"):
        context.get(context.run(fail))
    assert runs == [1]


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_a_name_is_free_in_another_namespace_and_in_another_context(spec: str) -> None:
    with create_context(spec, namespace="one") as one, create_context(spec, namespace="two") as two:
        first = one.create_actor(Counter, 1, name="counter", lifetime="detached")
        second = two.create_actor(Counter, 5, name="counter", lifetime="detached")
        try:
            with create_context(spec, namespace="one") as same:
                assert same.get(same.get_actor("counter").increment()) == 2
                with pytest.raises(ActorAlreadyExistsError):
                    same.create_actor(Counter, name="counter", lifetime="detached")
            assert two.get(second.increment()) == 6
            one.create_actor(Counter, name="own")  # not detached: of its own context alone
            with create_context(spec, namespace="one") as same, pytest.raises(ActorNotFoundError):
                same.get_actor("own")
        finally:
            one.kill(first)
            two.kill(second)


def test_resources_are_a_hint_here() -> None:
    with create_context("sync") as context:
        options = TaskOptions(resources={"CPU": 1000}, max_calls=1, max_retries=3, name="big")
        assert context.get(context.create_task(add, 1, options=options)) == 2


@pytest.mark.parametrize("spec", ["sync", "threadpool", "process"])
def test_an_exception_that_is_read_again_has_the_frames_of_its_task_alone(spec: str) -> None:
    def fail() -> None:
        raise ValueError("enough")

    def frames() -> int:
        with pytest.raises(ValueError, match="enough") as caught:
            context.get(failed)
        return len(caught.traceback)

    with create_context(spec) as context:
        failed = context.run(fail)
        assert len({frames() for _ in range(4)}) == 1


def test_an_actor_that_is_killed_while_it_is_constructed_is_released() -> None:
    constructing, go = threading.Event(), threading.Event()
    made: list[weakref.ref[Any]] = []

    class Slow:
        def __init__(self) -> None:
            made.append(weakref.ref(self))
            constructing.set()
            go.wait(60)

        def answer(self) -> int:
            return 42

    def released() -> bool:
        gc.collect()
        return made[0]() is None

    with create_context("threadpool") as context:
        maker = threading.Thread(target=context.create_actor, args=[Slow], kwargs={"name": "slow"})
        maker.start()
        assert constructing.wait(60)
        actor = context.get_actor("slow")
        context.kill(actor)
        go.set()
        maker.join(60)
        until(released, "the instance is released")
        with pytest.raises(ActorDiedError):
            context.get(actor.answer())


def test_a_reference_that_settles_while_somebody_comes_to_wait_tells_those_that_waited() -> None:
    with create_context("threadpool") as context:
        engine = context.engine  # type: ignore[attr-defined]

        def race(waiting: int, settling: int) -> tuple[bool, bool]:
            """Stop both at a line, let the waiting one go on first, and return whether each was notified."""
            ref = engine.promise()
            early, late = threading.Event(), threading.Event()
            settling_stopped, waits = threading.Event(), threading.Event()
            watch_for([ref], 1, early.set)

            def stopped() -> None:
                settling_stopped.set()
                waits.wait(60)

            def settle() -> None:
                interrupted(lambda: settle_value(ref, 1), stopped, settling, "_engine.refs")

            thread = threading.Thread(target=settle)

            def begin() -> None:
                thread.start()
                settling_stopped.wait(60)

            interrupted(lambda: watch_for([ref], 1, late.set), begin, waiting, "_engine.refs")
            waits.set()
            thread.join(60)
            return early.is_set(), late.is_set()

        outcomes = {race(waiting, settling) for waiting in range(1, 12) for settling in range(1, 16)}
    assert outcomes == {(True, True)}


def test_a_wait_for_one_of_several_streams_ends_with_the_next_item_where_another_took_the_first() -> None:
    gates = [threading.Event() for _ in range(3)]

    def items(*numbers: int) -> Iterator[int]:
        for number in numbers:
            gates[number].wait(60)
            yield number

    with create_context("threadpool") as context:
        shared: Any = context.run(items, 0, 1)
        other: Any = context.run(items, 2)
        watch_for([shared.call], 1, lambda: next(shared))  # before the waiter is notified
        done: list[Any] = []
        waiter = threading.Thread(target=lambda: done.append(context.wait([shared, other], timeout=60)))
        waiter.start()

        def waits_in() -> Any:
            frame = sys._current_frames()[waiter.ident or 0]
            return frame.f_locals.get("self") if frame.f_code.co_name == "block" else None

        first = until(waits_in, "it waits")
        gates[0].set()
        until(lambda: waits_in() not in (None, first), "it was woken for nothing, and waits again")
        gates[1].set()
        try:
            until(lambda: done, "the second item is seen", 20)
        finally:
            gates[2].set()
            waiter.join()
    assert done == [([shared], [other])]
