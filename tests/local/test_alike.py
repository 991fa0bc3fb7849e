"""The same program on each context of this wheel: results, errors, and when they appear."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fray import (
    ActorOptions,
    JobContext,
    SerializationError,
    TaskOptions,
    create_context,
    get_job_context,
)
from fray.testing import tasks
from fray.testing.gates import until

SPECS = ["sync", "threadpool?max_workers=2", "process?max_workers=2"]


@pytest.fixture(params=SPECS)
def context(request: pytest.FixtureRequest) -> Iterator[JobContext]:
    with create_context(request.param) as context:
        yield context


def everywhere(context: JobContext, program: Callable[[JobContext], Any]) -> list[Any]:
    """Return what a program gives where the context is, and inside one of its tasks."""
    return [program(context), context.get(context.run(lambda: program(get_job_context())), timeout=60)]


class TestLooks:
    def test_get_without_time_returns_what_is_there(self, context: JobContext) -> None:
        def look(context: JobContext) -> Any:
            refs = [context.run(tasks.add, index) for index in range(3)]
            context.wait(refs, num_returns=3)
            return (
                context.get(refs[0], timeout=0),
                context.get(refs, timeout=0),
                context.get(refs, timeout=-1),
            )

        assert everywhere(context, look) == [(1, [1, 2, 3], [1, 2, 3])] * 2

    def test_get_without_time_raises_the_failure_that_is_there(self, context: JobContext) -> None:
        def look(context: JobContext) -> str:
            failed = context.run(tasks.fail, "early")
            context.wait([failed])
            try:
                context.get(failed, timeout=0)
            except ValueError as error:
                return str(error)
            return "nothing"

        assert everywhere(context, look) == ["early"] * 2

    def test_aget_without_time_returns_what_is_there(self, context: JobContext) -> None:
        def look(context: JobContext) -> Any:
            ref = context.put(3)

            async def awaited() -> Any:
                return await context.aget(ref, timeout=0), await context.aget([ref, 4], timeout=0)

            return asyncio.run(awaited())

        assert everywhere(context, look) == [(3, [3, 4])] * 2

    def test_a_stream_is_ready_for_one_who_only_looks(self, context: JobContext) -> None:
        stream = context.run(tasks.numbers, 2)
        until(lambda: context.wait([stream], timeout=0)[0] == [stream], "the stream is ready")
        assert [context.get(ref) for ref in stream] == [0, 1]

    @pytest.mark.parametrize("num_returns", [1.5, "2", None])
    def test_a_num_returns_that_is_no_int_is_refused(self, context: JobContext, num_returns: Any) -> None:
        def refused(context: JobContext) -> str:
            try:
                context.wait([context.put(1), context.put(2), context.put(3)], num_returns=num_returns)
            except ValueError as error:
                return str(error)
            return "taken"

        said = f"num_returns must be an int of 1 or more, got {num_returns!r}"
        assert everywhere(context, refused) == [said] * 2


class TestOptions:
    def test_options_of_another_backend_are_ignored_whatever_they_are(self, context: JobContext) -> None:
        def use(context: JobContext) -> Any:
            native = {"ray": {"retry_exceptions": [type("OnlyHere", (ValueError,), {})], "act": lambda: None}}
            task = context.create_task(tasks.add, 1, options=TaskOptions(backend=native))
            actor = context.create_actor(tasks.Counter, options=ActorOptions(backend=native))
            return context.get([task, actor.increment(2)], timeout=60)

        assert everywhere(context, use) == [[2, 2]] * 2


class PanicError(BaseException):
    """What a library in Rust raises."""


class TestMaps:
    @pytest.mark.parametrize("bad", [PanicError("no room"), GeneratorExit()])
    def test_what_is_no_exception_comes_out_at_its_turn_too(
        self, context: JobContext, bad: BaseException
    ) -> None:
        def leave(index: int) -> int:
            if index == 50:
                raise bad
            return index

        values = context.map(leave, range(100))
        seen: list[int] = []
        with pytest.raises(type(bad)):
            seen.extend(values)
        assert seen == list(range(50))


class Panicking:
    """Raises when it is pickled, as libraries in Rust do."""

    def __reduce__(self) -> str:
        raise BaseException("panic")


@pytest.mark.parametrize("spec", ["threadpool?check_serialization=true", "process?max_workers=1"])
def test_what_panics_while_it_is_pickled_is_named(spec: str) -> None:
    with create_context(spec) as context:
        with pytest.raises(SerializationError, match=r"result of .*panic"):
            context.get(context.run(Panicking), timeout=60)
        with pytest.raises(SerializationError, match=r"argument 1 .*panic"):
            context.run(repr, Panicking())
