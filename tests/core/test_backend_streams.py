"""What the engine counts of a stream, over a runner that only takes note."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fray.backend import LOCK, ContextCapabilities, InProcessRunner, TaskRunnerContext
from fray.testing.interrupting import interrupted


class NotedRunner(InProcessRunner):
    """Keeps the calls that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def start(self, calls: Sequence[Any]) -> None:
        self.calls.extend(calls)

    def submit(self, job: Callable[[], None]) -> None: ...

    def resume(self, call: Any, more: int, parked: bool) -> None: ...

    def close(self, *, wait: bool) -> None: ...


class NotedContext(TaskRunnerContext):
    capabilities = ContextCapabilities(streams=True)


def items() -> Iterator[int]:
    yield 1


def pushed_and_read(line: int) -> tuple[int, bool]:
    """Park a stream, and read it in another thread at a line of that; return the lines, and if it goes on."""
    context = NotedContext(runner := NotedRunner())
    stream: Any = context.run(items)
    (call,) = runner.calls
    assert call.claim()

    def read() -> None:
        if LOCK.acquire(blocking=False):  # not in the middle of the engine's own bookkeeping
            try:
                while call.buffered:
                    next(stream)
            finally:
                LOCK.release()

    def visit() -> None:
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()

    lines = interrupted(lambda: call.push(range(call.credits)), visit, line, "engine.streams")
    goes_on = not call.parked
    assert (call in context.engine.open_calls()) is goes_on
    call.succeed()
    context.shutdown()
    return lines, goes_on


def test_a_stream_that_is_read_while_it_is_parked_is_counted_if_it_goes_on() -> None:
    lines, _ = pushed_and_read(0)
    went_on = [pushed_and_read(line)[1] for line in range(1, lines + 1)]
    assert any(went_on)
