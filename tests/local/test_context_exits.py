"""How a `with` block of a context is left: what has started ends well, except after Ctrl-C."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import JobContext, TaskCancelledError, create_context
from fray.testing.deadline import deadline
from fray.testing.gates import Gate


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with deadline(100):
        yield


@pytest.fixture(params=["sync", "threadpool?max_workers=1", "process?max_workers=1"])
def spec(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Held:
    """A task that runs until its context begins to end, and one that has not started."""

    def __init__(self, spec: str, folder: Path) -> None:
        self.inline = spec == "sync"
        self.started, self.gate, self.written = (
            Gate(folder / name) for name in ("started", "gate", "written")
        )
        self.running: Any = None
        self.pending: Any = None

    def start(self, context: JobContext) -> None:
        if self.inline:  # where a task ends before `run` returns
            self.gate.open()
        self.running = context.run(_write, self.started, self.gate, self.written)
        self.started.wait()
        self.pending = context.run(abs, -1)

        def release() -> None:
            context.wait([self.pending])  # until the end has begun
            context.wait([self.running], timeout=0.5)  # in which an end that kills has done so
            self.gate.open()

        threading.Thread(target=release).start()

    def check(self, context: JobContext) -> None:
        assert context.get(self.running) == "written"
        assert self.written.is_open()
        if not self.inline:
            with pytest.raises(TaskCancelledError):
                context.get(self.pending)


def _write(started: Gate, gate: Gate, written: Gate) -> str:
    started.open()
    gate.wait()
    written.open()
    return "written"


def close_a_generator(context: JobContext, held: Held) -> None:
    def program() -> Iterator[None]:
        with context:
            held.start(context)
            yield

    generator = program()
    next(generator)
    generator.close()  # type: ignore[attr-defined]


def cancel_a_coroutine(context: JobContext, held: Held) -> None:
    async def program() -> None:
        with context:
            held.start(context)
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(program())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


def fail(context: JobContext, held: Held) -> None:
    def program() -> None:
        with context:
            held.start(context)
            raise OSError("a plain one")

    with pytest.raises(OSError, match="a plain one"):
        program()


def exit_well(context: JobContext, held: Held) -> None:
    def program() -> None:
        with context:
            held.start(context)
            sys.exit()

    with pytest.raises(SystemExit):
        program()


@pytest.mark.parametrize("leave", [close_a_generator, cancel_a_coroutine, fail, exit_well])
def test_what_has_started_ends_well_when_a_block_is_left_by(
    leave: Callable[[JobContext, Held], None], spec: str, tmp_path: Path
) -> None:
    context, held = create_context(spec), Held(spec, tmp_path)
    leave(context, held)
    held.check(context)


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(3)])
def test_a_program_that_ends_by_it_ends_its_processes(raised: BaseException, tmp_path: Path) -> None:
    started, never, written = (Gate(tmp_path / name) for name in ("started", "never", "written"))

    def program() -> None:
        with create_context("process", max_workers=1) as context:
            context.run(_write, started, never, written)
            started.wait()
            raise raised

    with pytest.raises(type(raised)):
        program()
    assert not written.is_open()
