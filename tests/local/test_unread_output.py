"""What workers print while nobody reads it: only what prints waits, and nothing is lost for a late reader."""

import fcntl
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray.backend import readable
from fray.testing.deadline import deadline
from fray.testing.gates import Gate

PROGRAM = """
    import os, sys, time
    from pathlib import Path
    from fray import create_context
    from fray.testing.gates import Gate

    folder = Path(sys.argv[1])
    started, read = Gate(folder / "started"), Gate(folder / "read")
    LINES = 30_000

    def chatter():
        for number in range(LINES):
            print(f"{number:0>99}")
            if number == 20_000:  # more than waits anywhere
                started.open()
        return "done"

    def say(what):
        print(what)
        return what

    def note(*what):
        print(*what, file=sys.stderr, flush=True)
"""


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with deadline(100):
        yield


class Program:
    """A program whose standard output is a pipe, and what it reports on standard error."""

    def __init__(self, folder: Path, body: str) -> None:
        code = textwrap.dedent(PROGRAM) + textwrap.dedent(body)
        self.reads = Gate(folder / "read")
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, os.fspath(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        with self.process:
            pass

    def report(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline().strip()

    def rest(self) -> tuple[list[str], str]:
        """Read all that it prints from now on, to its end."""
        out, err = self.process.communicate()
        return out.splitlines(), err


NUMBERS = [f"{number:0>99}" for number in range(30_000)]


def test_only_what_prints_waits_for_the_reader(tmp_path: Path) -> None:
    body = """
        with create_context("process", max_workers=2) as context:
            printing = context.run(chatter)
            note(context.get(context.run(abs, -1)), len(context.wait([printing], timeout=3)[0]))
            note(context.get([context.run(abs, -number) for number in range(100)]) == list(range(100)))
            note(context.get(context.run(say, "short"), timeout=30))
            read.wait()
            note(context.get(printing))
        """
    with Program(tmp_path, body) as program:
        assert [program.report() for _ in range(3)] == ["1 0", "True", "short"]
        program.reads.open()
        lines, errors = program.rest()
    assert errors == "done\n"
    assert [line for line in lines if line != "short"] == NUMBERS
    assert lines.count("short") == 1


def test_the_end_of_a_context_does_not_wait_for_it_and_the_end_of_the_program_does(tmp_path: Path) -> None:
    body = """
        with create_context("process", max_workers=2) as context:
            printing = context.run(chatter)
            context.get(context.run(abs, -1))
        note("left", context.get(printing))
        """
    with Program(tmp_path, body) as program:
        assert program.report() == "left done"
        lines, errors = program.rest()
    assert (lines, errors, program.process.returncode) == (NUMBERS, "", 0)


@pytest.mark.parametrize("reader", ["reads nothing", "goes away"])
def test_an_interrupted_program_ends_whatever_its_reader_does(tmp_path: Path, reader: str) -> None:
    body = """
        try:
            with create_context("process", max_workers=2) as context:
                printing = context.run(chatter)
                context.wait([printing], timeout=2)
                raise KeyboardInterrupt
        finally:
            note("left")
        """
    with Program(tmp_path, body) as program:
        assert program.process.stdout is not None
        if reader == "goes away":
            program.process.stdout.close()
        assert program.report() == "left"
        assert program.process.wait() != 0
        errors = program.process.stderr.read() if program.process.stderr else ""
    assert "KeyboardInterrupt" in errors
    assert "Fatal" not in errors


def test_a_reader_that_goes_away_ends_no_task(tmp_path: Path) -> None:
    body = """
        with create_context("process", max_workers=2) as context:
            note(context.get(context.run(say, "first")))
            read.wait()
            note(context.get(context.run(chatter)))
        os._exit(0)
        """
    with Program(tmp_path, body) as program:
        assert program.report() == "first"
        assert program.process.stdout is not None
        program.process.stdout.close()
        program.reads.open()
        assert program.report() == "done"


def test_a_slow_reader_gets_the_lines_of_a_task_before_its_result_is_there(tmp_path: Path) -> None:
    body = """
        with create_context("process", max_workers=1) as context:
            for number in range(3):
                context.get(context.run(say, "x" * 99 + ("\\n" + "x" * 99) * 199))
                note(number)
        """
    with Program(tmp_path, body) as program:
        out, err = program.process.stdout, program.process.stderr
        assert out is not None
        assert err is not None
        room = fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, 1 << 12)
        seen = results = 0
        while data := os.read(out.fileno(), 1 << 11):
            seen += len(data)
            while readable([err.fileno()], 0.05) and (told := os.read(err.fileno(), 9)):
                results += told.count(b"\n")
                assert seen + room >= results * 20_000
    assert (seen, results) == (60_000, 3)
