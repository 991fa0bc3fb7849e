"""What users get from a type checker: this file is checked, never run.

A line with a `type: ignore` is a refusal; mypy reports it should it ever be accepted.
"""

from collections.abc import Iterator
from typing import Any, assert_type

from fray import JobContext, ObjectRef, ObjectStream, create_context
from fray.queue import Queue, Ticket
from fray_local import SyncContext, ThreadContext
from fray_queue import MemoryQueue, SqliteQueue


def double(x: int) -> int:
    return 2 * x


def repeat(text: str, times: int = 2) -> str:
    return text * times


def count(n: int) -> Iterator[int]:
    yield from range(n)


async def fetch(url: str) -> bytes:
    return url.encode()


def tasks(context: JobContext) -> None:
    assert_type(context.run(double, 3), ObjectRef[int])
    assert_type(context.get(context.run(double, 3)), int)
    assert_type(context.run(len, "abc"), ObjectRef[int])
    assert_type(context.run(repeat, "a", times=3), ObjectRef[str])
    assert_type(context.run(fetch, "u"), ObjectRef[bytes])
    assert_type(context.run(lambda: 3), ObjectRef[int])
    assert_type(context.create_task(double, 3), ObjectRef[int])
    context.run(double, "three")  # type: ignore[call-overload]
    context.run(double)  # type: ignore[call-overload]
    context.run(double, 3, 4)  # type: ignore[call-overload]
    context.run(len, 3)  # type: ignore[call-overload]
    context.run(3)  # type: ignore[call-overload]


def references(context: JobContext) -> None:
    ref = context.put(3)
    assert_type(ref, ObjectRef[int])
    assert_type(context.run(double, ref), ObjectRef[int])
    assert_type(context.run(repeat, "a", ref), ObjectRef[str])
    assert_type(context.run(lambda data: sum(data), context.put([1, 2])), ObjectRef[int])
    assert_type(context.get([ref, ref]), list[int])
    assert_type(context.get("plain"), str)
    ready, pending = context.wait([ref], num_returns=1)
    assert_type(ready, list[ObjectRef[int]])
    assert_type(pending, list[ObjectRef[int]])


def streams(context: JobContext) -> None:
    stream = context.run(count, 3)
    assert_type(stream, ObjectStream[int])
    assert_type(next(stream), ObjectRef[int])
    assert_type(context.get(next(stream)), int)
    assert_type(list(context.map(double, [1, 2])), list[int])
    context.get(next(context.run(double, 3)))  # type: ignore[call-overload]


async def asynchronous(context: JobContext) -> None:
    async for ref in context.run(count, 3):
        assert_type(ref, ObjectRef[int])
    async for value in context.amap(double, [1]):
        assert_type(value, int)


def backends() -> None:
    assert_type(create_context("sync"), JobContext)
    context: JobContext = ThreadContext(max_workers=2)
    context = SyncContext()
    context.shutdown()
    assert_type(ThreadContext().run(double, 3), ObjectRef[int])


def queues(queue: Queue[int]) -> None:
    assert_type(queue.push(1, priority=2, delay=1.0, ttl=5.0, key="k"), str)
    assert_type(queue.push(1, reply=True), Ticket[Any])
    assert_type(queue.push_many([1, 2], keys=["a", None]), list[str])
    assert_type(queue.push_many([1, 2], reply=True), list[Ticket[Any]])
    assert_type(MemoryQueue[int]().push(1), str)
    assert_type(SqliteQueue[int]("q.db").push(1, reply=True), Ticket[Any])
    queue.push("text")  # type: ignore[call-overload]
    queue.push(1, keys=["a"])  # type: ignore[call-overload]
