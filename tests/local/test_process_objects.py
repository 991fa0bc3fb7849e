"""Large values: stored once, mapped where they are read, bounded, and gone when nobody needs them."""

import contextlib
import gc
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from fray import JobContext, TaskError, create_context, get_job_context
from fray.testing.gates import Gate, until
from fray.testing.interrupting import interrupted

MEGABYTE = 1 << 20


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


class Array:
    """A buffer that travels out of band, as NumPy's arrays do."""

    def __init__(self, data: Any) -> None:
        self.view = memoryview(data)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Array, (pickle.PickleBuffer(self.view),)

    def total(self) -> int:
        return sum(self.view[:: 1 << 16])


def memory_files() -> int:
    """The memory files that this process holds."""
    gc.collect()
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            found += "memfd:fray" in os.fspath(fd.readlink()) and fd.stat().st_size > 8
    return found


def test_a_large_buffer_is_mapped_read_only_and_not_copied(context: JobContext) -> None:
    size = 64 * MEGABYTE
    ref = context.put(Array(bytearray(b"\1") * size))

    def read(array: Array) -> tuple[bool, int, int]:
        total = array.total()
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        own = next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))
        return array.view.readonly, total, own

    for readonly, total, own in context.get([context.run(read, ref) for _ in range(4)]):
        assert readonly
        assert total == size >> 16
        assert own < size // 2
    mine = context.get(ref)
    assert mine.view.readonly
    assert mine.total() == size >> 16


@pytest.mark.parametrize("value", [b"x" * MEGABYTE, "é" * MEGABYTE, [b"a" * MEGABYTE, b"b" * MEGABYTE]])
def test_large_plain_values_come_back_as_they_were(context: JobContext, value: Any) -> None:
    assert context.get(context.put(value)) == value
    assert context.get(context.run(lambda given: given, value)) == value


def test_a_large_result_reaches_another_task(context: JobContext) -> None:
    made = context.run(lambda: Array(bytearray(b"\1") * MEGABYTE))
    assert context.get(context.run(Array.total, made)) == MEGABYTE >> 16


def test_a_task_puts_and_gets_large_values(context: JobContext) -> None:
    def work() -> int:
        current = get_job_context()
        ref = current.put(Array(bytearray(b"\2") * MEGABYTE))
        return current.get(current.run(Array.total, ref)) + current.get(ref).total()

    assert context.get(context.run(work)) == 4 * (MEGABYTE >> 16)


def test_memory_goes_with_the_last_reference(context: JobContext) -> None:
    ref = context.put(b"x" * MEGABYTE)
    kept = [ref]
    assert memory_files() == 1
    assert context.get(context.run(len, ref)) == MEGABYTE
    del ref
    assert memory_files() == 1
    kept.clear()
    until(lambda: memory_files() == 0, "the memory is given back")


class Reader:
    def read(self, refs: list[Any]) -> int:
        return len(refs)

    def give_back(self, refs: list[Any]) -> list[Any]:
        return refs


class AsyncReader:
    async def read(self, refs: list[Any]) -> int:
        return len(refs)

    async def give_back(self, refs: list[Any]) -> list[Any]:
        return refs


@pytest.mark.parametrize("cls", [Reader, AsyncReader])
@pytest.mark.parametrize("method", ["read", "give_back"])
def test_an_actor_that_has_answered_keeps_no_argument(cls: type, method: str) -> None:
    with create_context("process", max_workers=1, object_store_memory=3 * MEGABYTE) as context:
        actor = context.create_actor(cls)
        ref = context.put(bytes(2 * MEGABYTE))
        assert context.get(getattr(actor, method)([ref]))
        del ref

        def fits() -> bool:
            try:
                context.put(bytes(2 * MEGABYTE))
            except MemoryError:
                return False
            return True

        until(fits, "there is room for another value", 20)


def test_a_program_that_is_started_meanwhile_keeps_no_memory(context: JobContext, tmp_path: Path) -> None:
    def inherited(by: str) -> str:
        os.system(f"ls -l /proc/self/fd > {tmp_path / by}")
        return (tmp_path / by).read_text()

    result = context.run(bytes, 1_000_000)
    context.wait([result])
    assert "memfd" not in inherited("owner")
    seen = context.get(context.run(lambda _: inherited("worker"), result))
    assert "memfd" not in seen
    assert "socket" not in seen


def test_a_reference_inside_a_task_keeps_the_memory(context: JobContext) -> None:
    def first(inside: list[Any]) -> int:
        return len(get_job_context().get(inside[0]))

    assert context.get(context.run(first, [context.put(b"x" * MEGABYTE)])) == MEGABYTE
    until(lambda: memory_files() == 0, "the memory is given back")


def test_arguments_and_results_are_given_back(context: JobContext) -> None:
    for _ in range(5):
        assert len(context.get(context.run(bytes, b"x" * MEGABYTE))) == MEGABYTE
    until(lambda: memory_files() == 0, "the memory is given back")


def test_more_than_the_limit_is_refused_with_the_figures(tmp_path: Path) -> None:
    with create_context("process", object_store_memory=3 * MEGABYTE) as context:
        kept = [context.put(b"x" * MEGABYTE) for _ in range(2)]
        with pytest.raises(MemoryError, match=r"2,\d+,\d+ of 3,145,728 bytes are in use"):
            context.put(b"x" * 2 * MEGABYTE)
        with pytest.raises(MemoryError, match="object_store_memory"):
            context.get(context.run(bytes, 2 * MEGABYTE))
        with pytest.raises(MemoryError):
            context.get(context.run(lambda: get_job_context().put(b"x" * 2 * MEGABYTE)))
        many = context.run(lambda: [get_job_context().put(b"x" * (MEGABYTE // 2)) for _ in range(4)])
        with pytest.raises(MemoryError, match="object_store_memory"):  # the task did not wait for them
            context.get(context.get(many))
        del many
        kept.clear()
        assert len(context.get(context.put(b"x" * 2 * MEGABYTE))) == 2 * MEGABYTE


def length_of_a_future(size: int) -> Any:
    future: Future[bytes] = Future()
    future.set_result(bytes(size))
    context, length = get_job_context(), cast("Callable[..., int]", len)
    return context.get(context.run(length, future))


def test_the_result_of_a_future_counts_as_well() -> None:
    with create_context("process", max_workers=1, object_store_memory=500_000) as context:
        assert context.get(context.run(length_of_a_future, 400_000), timeout=30) == 400_000
        with pytest.raises(MemoryError, match="of 500,000 bytes are in use"):
            context.get(context.run(length_of_a_future, 600_000), timeout=30)


def test_more_than_the_limit_goes_to_disk_where_asked(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    with create_context("process", object_store_memory=MEGABYTE, spill_dir=os.fspath(spill)) as context:
        refs = [context.put(bytes([index]) * MEGABYTE) for index in range(4)]
        made = context.run(bytes, 2 * MEGABYTE)
        assert [context.get(ref)[0] for ref in refs] == [0, 1, 2, 3]
        assert context.get([context.run(len, ref) for ref in refs]) == [MEGABYTE] * 4
        assert len(context.get(made)) == 2 * MEGABYTE
    assert list(spill.iterdir()) == []  # nothing has a name that could be left behind


def test_a_worker_maps_a_value_once_and_lets_go_with_the_last_reference(context: JobContext) -> None:
    ref = context.put(b"x" * MEGABYTE)
    assert context.get([context.run(len, ref) for _ in range(20)]) == [MEGABYTE] * 20

    def mappings(pid: int) -> int:
        return Path(f"/proc/{pid}/maps").read_text().count("memfd:fray")

    workers = set(context.get([context.run(os.getpid) for _ in range(20)]))
    assert all(mappings(pid) <= 1 for pid in workers)
    assert sum(map(mappings, workers)) >= 1
    del ref
    until(lambda: sum(map(mappings, workers)) == 0, "the workers let go")


def test_more_large_values_than_a_program_may_have_files_open(context: JobContext) -> None:
    refs = [context.put(bytes([index % 256]) * (1 << 16)) for index in range(3000)]
    firsts = context.get([context.run(lambda data: data[0], ref) for ref in refs])
    assert firsts == [index % 256 for index in range(3000)]


def test_hundreds_of_large_arguments_travel_together(context: JobContext) -> None:
    refs = [context.put(bytes([index % 256]) * (1 << 16)) for index in range(600)]
    assert context.get(context.run(lambda *parts: sum(map(len, parts)), *refs)) == 600 << 16


def test_what_is_read_stays_after_its_reference_is_gone(context: JobContext) -> None:
    ref = context.put(Array(bytearray(b"\1") * MEGABYTE))
    array = context.get(ref)
    del ref
    assert array.total() == MEGABYTE >> 16


@pytest.mark.timeout(60)
def test_a_finalizer_may_store_a_value_while_one_is_stored() -> None:
    size, count = 1 << 20, 10
    with create_context("process", object_store_memory=size * count) as context:

        def put() -> None:
            refs.append(context.put(bytes(size - 4096)))

        refs: list[Any] = []
        lines = interrupted(put, put, 0, "protocol.values")
        refs.clear()
        for line in range(1, lines):
            interrupted(put, put, line, "protocol.values")
            assert len(refs) == 2
            refs.clear()
        for _ in range(count):  # each that was forgotten was counted down once
            put()
        with pytest.raises(MemoryError):
            put()


def put_for_ever(started: Gate) -> None:
    context, data = get_job_context(), bytes(MEGABYTE)
    started.open()
    while True:
        context.put(data)


def test_a_task_that_is_cancelled_while_it_stores_values_leaves_none(tmp_path: Path) -> None:
    with create_context("process", max_workers=1) as context:
        assert context.get(context.run(abs, -1)) == 1
        for turn in range(20):
            started = Gate(tmp_path / str(turn))
            storing = context.run(put_for_ever, started)
            started.wait()
            context.cancel(storing)
            assert context.get(context.run(abs, -1), timeout=60) == 1
        until(lambda: memory_files() == 0, "all are released", 20)


class Captured:
    """What a function keeps; it opens a gate when it is released."""

    def __init__(self, released: Gate, size: int) -> None:
        self.released, self.data = released, bytes(size)

    def __del__(self) -> None:
        self.released.open()


def captured_by(captured: Captured) -> Callable[[], int]:
    return lambda: os.getpid() if captured.data else 0


def test_a_worker_does_not_keep_what_many_large_functions_have_captured(tmp_path: Path) -> None:
    with create_context("process", max_workers=1) as context:
        gates = [Gate(tmp_path / str(number)) for number in range(4)]
        workers = set()
        for gate in gates:
            captured = Captured(gate, 10 * MEGABYTE)
            workers.add(context.get(context.run(captured_by(captured))))
            captured.released = Gate(tmp_path / "own")
        assert len(workers) == 1
        until(lambda: gates[0].is_open() and gates[1].is_open(), "the worker has released some", 60)


class Refused(Exception):
    """Refers to what it was raised for."""


class Unloadable(Exception):
    """Can be loaded in the process alone that has made it."""

    def __init__(self, message: str, maker: int) -> None:
        super().__init__(message, maker)
        if maker != os.getpid():
            raise RuntimeError("made elsewhere")


def refuse(value: Any) -> None:
    raise Refused("no", get_job_context().put(value))


def refuse_later(value: Any) -> Any:
    """Fail a task by a future of this process."""
    future: Future[Any] = Future()
    ref = get_job_context().create_task(len, future)
    future.set_exception(Refused("no", get_job_context().put(value)))
    return [ref]


def test_an_exception_brings_the_references_inside_it(context: JobContext) -> None:
    def refuse_items(value: Any) -> Iterator[int]:
        yield 1
        refuse(value)

    def catch(refs: list[Any]) -> Any:
        with pytest.raises(Refused) as caught:
            get_job_context().get(refs[0])
        return get_job_context().get(caught.value.args[1])

    items = list(context.run(refuse_items, "x"))
    failed = [context.run(refuse, "x"), items[1], context.get(context.run(refuse_later, "x"))[0]]
    context.get([context.run(len, "abc") for _ in range(20)])  # the workers have forgotten theirs meanwhile
    for ref in failed:
        with pytest.raises(Refused, match="no") as caught:
            context.get(ref, timeout=60)
        assert context.get(caught.value.args[1], timeout=60) == "x"
        assert context.get(context.run(catch, [ref]), timeout=60) == "x"


def test_an_exception_that_cannot_be_loaded_brings_its_name_and_its_traceback(context: JobContext) -> None:
    def fail() -> None:
        raise Unloadable("its message", os.getpid())

    with pytest.raises(TaskError, match="made elsewhere") as caught:
        context.get(context.run(fail), timeout=60)
    assert "in fail" in caught.value.traceback
    assert "Unloadable: ('its message'" in caught.value.traceback
