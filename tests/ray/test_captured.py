"""References and handles that a function or an actor's class holds, rather than an argument.

Each is used in a worker after the program has dropped its own.
"""

import contextlib
import functools
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.util.state import list_objects

from fray import (
    ActorDiedError,
    ActorOptions,
    JobContext,
    SerializationError,
    TaskOptions,
    create_context,
    get_job_context,
)
from fray.testing.gates import Gate, until
from fray_ray.testing import LocalRayCluster

SOON = 120.0  # seconds that a `get` may take on a machine that is busy; without the mend it never ends
LARGE = b"table" * 40_000  # more than travels with each call


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def fetched(ref: Any) -> Any:
    """Return a value, or raise: a worker that hung would be there for the tests behind this one."""
    return get_job_context().get(ref, timeout=SOON)


def read(ref: Any, gate: Gate, *_: Any) -> Any:
    gate.wait()
    return fetched(ref)


class Reader:
    """Holds a reference, and is what a bound method is bound to."""

    def __init__(self, ref: Any, gate: Gate) -> None:
        self.ref, self.gate = ref, gate

    def read(self) -> Any:
        self.gate.wait()
        return fetched(self.ref)


class Adder:
    """An actor, in a process of its own."""

    def add(self, number: int) -> int:
        return number + 1

    def pid(self) -> int:
        return os.getpid()


def by_closure(ref: Any, gate: Gate) -> Callable[[], Any]:
    return lambda: read(ref, gate)


def by_default(ref: Any, gate: Gate) -> Callable[[], Any]:
    def function(held: Any = ref) -> Any:
        return read(held, gate)

    return function


def in_container(ref: Any, gate: Gate) -> Callable[[], Any]:
    held = {"deep": [(ref, ref)]}
    return lambda: read(held["deep"][0][1], gate)


def beside_large(ref: Any, gate: Gate) -> Callable[[], Any]:
    table = bytes(LARGE)
    return lambda: read(ref, gate, table)


HOLDERS = [
    by_closure,
    functools.partial(functools.partial, read),
    lambda ref, gate: Reader(ref, gate).read,
    by_default,
    in_container,
    beside_large,
]


@pytest.mark.parametrize("holder", HOLDERS, ids=["closure", "partial", "method", "default", "deep", "large"])
@pytest.mark.parametrize("made", ["put", "task"])
def test_a_task_reads_a_reference_that_its_function_holds(
    context: JobContext, gate: Gate, holder: Callable[..., Any], made: str
) -> None:
    ref = context.put(1024) if made == "put" else context.run(pow, 2, 10)
    result = context.run(holder(ref, gate))
    del ref
    gc.collect()
    gate.open()
    assert context.get(result, timeout=SOON) == 1024


def test_a_stream_reads_a_reference_that_its_function_holds(context: JobContext, gate: Gate) -> None:
    def function(ref: Any) -> Callable[[], Iterator[Any]]:
        def items() -> Iterator[Any]:
            yield 1
            yield read(ref, gate)

        return items

    stream = context.run(function(context.put(2)))
    gc.collect()
    gate.open()
    assert [context.get(item, timeout=SOON) for item in stream] == [1, 2]


def test_equal_functions_read_each_its_own_reference(context: JobContext, gate: Gate) -> None:
    gate.open()
    results = [context.run(by_closure(context.put(number), gate)) for number in range(12)]
    assert context.get(results, timeout=SOON) == list(range(12))


def test_a_task_calls_an_actor_that_its_function_holds_and_the_actor_ends_after_it(
    context: JobContext, gate: Gate
) -> None:
    def function(actor: Any) -> Callable[[], Any]:
        def call() -> Any:
            gate.wait()
            return fetched(actor.add(1))

        return call

    actor = context.create_actor(Adder)
    pid = context.get(actor.pid())
    result = context.run(function(actor))
    del actor
    gc.collect()
    gate.open()
    assert context.get(result, timeout=SOON) == 2
    until(lambda: not is_running(pid), "the actor ends with the last handle")


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


@pytest.mark.parametrize(
    ("holder", "options"),
    [
        (by_closure, TaskOptions()),
        (beside_large, TaskOptions()),
        (by_closure, TaskOptions(max_calls=3)),
        (lambda ref, gate: Reader(ref, gate).read, TaskOptions(max_calls=3)),
    ],
    ids=["small", "large", "counted", "counted method"],
)
def test_the_object_goes_when_the_task_has_ended(
    context: JobContext,
    gate: Gate,
    ray_cluster: LocalRayCluster,
    holder: Callable[..., Any],
    options: TaskOptions,
) -> None:
    ref: Any = context.put(bytes(2_000_000))
    name = ref.hex()
    function = holder(ref, gate)
    result = context.create_task(function, options=options)
    del ref, function
    gc.collect()
    gate.open()
    assert len(context.get(result, timeout=SOON)) == 2_000_000

    def is_stored() -> bool:
        stored = list_objects(
            address=ray_cluster.dashboard, limit=10_000, timeout=200, raise_on_missing_output=False
        )
        return any(each.object_id == name for each in stored)

    until(lambda: not is_stored(), "the object is freed")


def test_a_retried_task_reads_it_again(context: JobContext, gate: Gate, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def function(ref: Any) -> Callable[[], Any]:
        def dies_once() -> Any:
            gate.wait()
            if not died.exists():
                died.touch()
                os._exit(1)
            return fetched(ref)

        return dies_once

    options = TaskOptions(max_retries=2)
    result = context.create_task(function(context.run(pow, 2, 3)), options=options)
    gc.collect()
    gate.open()
    assert context.get(result, timeout=SOON) == 8


def reading_class(ref: Any, adder: Any) -> type:
    class Reading:
        inner = adder

        def read(self) -> Any:
            return fetched(ref), fetched(self.inner.add(1))

        def pid(self) -> int:
            return os.getpid()

    return Reading


@pytest.mark.parametrize("name", [None, "reading"])
def test_an_actor_reads_what_its_class_holds_and_again_after_a_restart(
    context: JobContext, name: str | None
) -> None:
    cls = reading_class(context.run(pow, 2, 4), context.create_actor(Adder))
    actor = context.create_actor(cls, options=ActorOptions(name=name, max_restarts=1))
    if name is not None:
        actor = context.get_actor(name)
    pid = context.get(actor.pid(), timeout=SOON)
    del cls
    gc.collect()
    assert context.get(actor.read(), timeout=SOON) == (16, 2)
    os.kill(pid, 9)

    def read_again() -> Any:
        with contextlib.suppress(ActorDiedError):  # it is not back yet
            return context.get(actor.read(), timeout=SOON)

    assert until(read_again, "the actor is back") == (16, 2)


def test_a_task_calls_a_restarted_actor_that_was_given_a_reference_and_a_handle(
    context: JobContext, gate: Gate
) -> None:
    class Given:
        def __init__(self, table: bytes, within: dict[str, list[Any]]) -> None:
            self.size, self.adder = len(table), within["adders"][0]
            self.size += fetched(within["adders"][1])

        def call(self) -> tuple[int, int]:
            return fetched(self.adder.add(self.size)), os.getpid()

    def calls(handles: list[Any]) -> Any:
        before = fetched(handles[0].call())
        gate.wait()
        os.kill(before[1], 9)

        def after() -> Any:
            with contextlib.suppress(ActorDiedError):  # it is not back yet
                return fetched(handles[0].call())

        return before[0], until(after, "the actor is back")[0]

    options = ActorOptions(max_restarts=1)
    within = {"adders": [context.create_actor(Adder), context.put(7)]}
    given = context.put(bytes(2_000_000)), within
    result = context.run(calls, [context.create_actor(Given, *given, options=options)])
    del given, within
    gc.collect()
    gate.open()
    assert context.get(result, timeout=2 * SOON) == (2_000_008, 2_000_008)


def test_what_an_actors_class_holds_goes_with_the_actor(context: JobContext) -> None:
    inner = context.create_actor(Adder)
    pid = context.get(inner.pid())
    cls = reading_class(context.put(3), inner)
    actor = context.create_actor(cls)
    del inner, cls
    gc.collect()
    assert context.get(actor.read(), timeout=SOON) == (3, 2)
    del actor
    gc.collect()
    until(lambda: not is_running(pid), "the actor that the class held ends")


def test_a_function_holds_its_context_and_a_reference(context: JobContext, gate: Gate) -> None:
    def function(ref: Any) -> Callable[[], Any]:
        def run() -> Any:
            gate.wait()
            return context.get(context.run(pow, ref, 2), timeout=SOON)

        return run

    result = context.run(function(context.put(5)))
    gc.collect()
    gate.open()
    assert context.get(result, timeout=SOON) == 25


def test_a_stream_that_a_function_holds_is_refused(context: JobContext) -> None:
    stream: Any = context.run(iterated)
    with pytest.raises(SerializationError, match=r"the function .*generator"):
        context.run(lambda: next(stream))


def iterated() -> Iterator[int]:
    yield 1


PROGRAM = """
import gc, sys
from fray import create_context, get_job_context
from fray.testing.gates import Gate

def read():
    gate.wait()
    return get_job_context().get(weights, timeout=100) + get_job_context().get(actor.add(1), timeout=100)

class Adder:
    def add(self, number):
        return number + 1

with create_context("ray?address=" + sys.argv[1]) as context:
    gate = Gate(__import__("pathlib").Path(sys.argv[2]))
    weights, actor = context.run(pow, 2, 5), context.create_actor(Adder)
    result = context.run(read)
    weights = actor = None
    gc.collect()
    gate.open()
    print("result", context.get(result, timeout=100))
"""


def test_a_task_reads_the_globals_of_the_program(ray_cluster: LocalRayCluster, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), ray_cluster.address, str(tmp_path / "gate")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert "result 34" in done.stdout, done.stdout + done.stderr
