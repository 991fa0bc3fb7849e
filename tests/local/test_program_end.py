"""What a program that has come to its last line can still do with contexts: the same on every Python.

From 3.12 on Python starts no thread then.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def printed(program: str, *arguments: str) -> str:
    """Run a program; return what it printed. It prints nothing else, and ends well."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(params=["threadpool?max_workers=2", "process?max_workers=2"])
def spec(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_tasks_that_wait_for_tasks_are_waited_for(spec: str) -> None:
    program = r"""
        import os, sys, threading
        from fray import create_context, get_job_context

        context, program = create_context(sys.argv[1]), os.getpid()

        def inner(n):
            return n

        def middle(n):
            current = get_job_context()
            return sum(current.get([current.run(inner, n), current.run(inner, 1)]))

        def outer(n):
            if os.getpid() == program:
                threading.main_thread().join()  # the last line has run
            current = get_job_context()
            found = sum(current.get([current.run(middle, n), current.run(middle, n)]))
            sys.stdout.write(f"{found}\n")

        for n in range(4):
            context.run(outer, n)
        """
    assert sorted(printed(program, spec).split()) == ["2", "4", "6", "8"]


def test_functions_at_exit_use_all_of_a_context(spec: str) -> None:
    program = r"""
        import atexit, sys, threading
        from fray import create_context, get_job_context

        class Counter:
            def __init__(self):
                self.count = 0
            def add(self, n):
                self.count += n
                return self.count

        def double(n):
            return 2 * n

        def count(n):
            yield from range(n)

        def nested(n):
            current = get_job_context()
            return current.get(current.run(double, current.get(current.run(double, n))))

        def at_exit():
            assert not threading.main_thread().is_alive()
            print(context.get([context.run(double, 1), context.run(nested, 2)]))
            print(list(context.map(double, range(3))), [context.get(item) for item in context.run(count, 3)])
            print(context.get(before.add.remote(2)), context.get(context.create_actor(Counter).add.remote(3)))
            future = context.as_executor().submit(double, 4)
            print(future.result(), context.as_executor().submit(double, 5).result())
            with create_context("sync") as other:
                print(other.get(other.run(double, 6)))

        context = create_context(sys.argv[1])
        before = context.create_actor(Counter)
        before.add.remote(1)
        atexit.register(at_exit)
        """
    expected = "[2, 8]\n[0, 2, 4] [0, 1, 2]\n3 3\n8 10\n12\n"
    assert printed(program, spec) == expected


def test_a_thread_that_outlives_the_last_line_goes_on(spec: str) -> None:
    program = r"""
        import sys, threading
        from fray import create_context

        context, unused = create_context(sys.argv[1]), create_context(sys.argv[1])

        def go_on():
            threading.main_thread().join()
            print(context.get([context.run(abs, -n) for n in range(3)]))
            with unused:
                print(unused.get(unused.run(abs, -3)))

        threading.Thread(target=go_on).start()
        """
    assert printed(program, spec) == "[0, 1, 2]\n3\n"


def test_contexts_that_end_with_the_program_end_in_any_order(spec: str) -> None:
    program = r"""
        import sys
        from fray import create_context

        def show(n):
            sys.stdout.write(f"{n}\n")

        contexts = [create_context(sys.argv[1]) for _ in range(3)]
        for number, context in enumerate(contexts):
            context.run(show, number)
        contexts[1].shutdown(wait=False)
        """
    assert sorted(printed(program, spec).split()) == ["0", "1", "2"]


@pytest.mark.parametrize("end", ["raise ValueError('crash')", "sys.exit(3)"])
def test_a_program_that_fails_does_not_wait_for_its_current_context(spec: str, end: str) -> None:
    program = f"""
        import sys, threading
        from fray import get_job_context

        def work():
            threading.Event().wait(600)

        context = get_job_context()
        context.get(context.run(abs, -1))
        context.run(work)
        {end}
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "FRAY_CONTEXT_SPEC": spec},
        check=False,
        timeout=60,
    )
    assert done.returncode != 0


def test_calls_of_actors_that_are_given_up_are_not_waited_for_in_the_current_context() -> None:
    program = """
        import threading
        from fray import get_job_context

        class Actor:
            def work(self):
                threading.Event().wait(600)

        actor = get_job_context().create_actor(Actor)
        ref = actor.work()
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "FRAY_CONTEXT_SPEC": "threadpool"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "Actor.work()" in done.stderr


def test_a_successful_exit_in_a_with_block_waits_for_what_runs(spec: str, tmp_path: Path) -> None:
    program = r"""
        import sys, threading
        from pathlib import Path
        from fray import create_context
        from fray.testing.gates import Gate

        begun, going = (Gate(Path(sys.argv[2]) / name) for name in ("begun", "going"))

        def finish():
            begun.open()
            going.wait()
            print("finished", flush=True)

        with create_context(sys.argv[1]) as context:
            context.run(finish)
            begun.wait()
            threading.Timer(0.5, going.open).start()  # when the block is left
            sys.exit(0)
        """
    assert printed(program, spec, os.fspath(tmp_path)) == "finished\n"
