"""What workers find imported, and what they do not share although they are forked from one process."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import JobContext, TaskOptions, create_context, get_job_context
from fray.testing.gates import until
from fray.testing.interrupting import interrupted
from fray.testing.tasks import Counter

LIBRARY = "library_of_a_test"
OWN = "module_of_a_test"


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=1) as context:
        yield context


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a module of the program itself can be written; below it is an installed library."""
    monkeypatch.syspath_prepend(tmp_path)
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (installed / f"{LIBRARY}.py").touch()
    return tmp_path


def load(*names: str) -> None:
    for name in names:
        __import__(name)


def found_imported(depth: int) -> list[set[str]]:
    """Return what so many further workers have found imported, each of which waits for the next."""
    mine = get_job_context()
    further = mine.get(mine.run(found_imported, depth - 1)) if depth else []
    return [{LIBRARY, OWN} & set(sys.modules), *further]


def in_new_workers(context: JobContext, depth: int) -> list[set[str]]:
    """Return the same of workers that have run nothing before."""
    return context.get(context.run(found_imported, depth), timeout=60)[1:]


@pytest.mark.timeout(180)
def test_where_tasks_wait_others_find_the_libraries_of_earlier_tasks_and_not_the_programs_modules(
    modules: Path,
) -> None:
    (modules / f"{OWN}.py").write_text("import random\nGENERATOR = random.Random()\n")

    def attempt() -> set[str]:  # a worker reports what it has imported when it has nothing else to do
        with create_context("process", max_workers=1) as context:
            context.get(context.run(load, OWN, "http.server", LIBRARY))
            return next(filter(None, in_new_workers(context, 30)), set())

    assert until(attempt, "a worker finds a library imported") == {LIBRARY}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "keeps",
    ["FILE = open(os.devnull)", "import _thread, time\n_thread.start_new_thread(time.sleep, (600,))"],
    ids=["an open file", "a thread that threading does not know"],
)
def test_no_worker_comes_with_what_a_library_keeps(context: JobContext, modules: Path, keeps: str) -> None:
    imports = modules / "imports"
    (modules / "site-packages" / f"{LIBRARY}.py").write_text(
        f"import os\n{keeps}\nwith open({os.fspath(imports)!r}, 'a') as file:\n    file.write('.')\n"
    )
    context.get(context.run(load, "http.server", LIBRARY))  # with the many that are worth a fork server
    in_new_workers(context, 1)
    until(lambda: imports.stat().st_size == 2, "a fork server has imported what the first worker had")
    assert in_new_workers(context, 3) == [set(), set(), set()]


@pytest.mark.timeout(60)
def test_workers_that_found_numpy_imported_draw_numbers_of_their_own() -> None:
    def draw() -> tuple[bool, int]:
        imported = "numpy.random" in sys.modules
        import numpy as np

        return imported, int(np.random.randint(1 << 30))

    with create_context("process?preload=numpy.random", max_workers=2) as context:
        once = TaskOptions(max_calls=1)
        drawn = context.get([context.create_task(draw, options=once) for _ in range(3)], timeout=50)
    assert {imported for imported, _ in drawn} == {True}
    assert len({number for _, number in drawn}) == 3


@pytest.mark.timeout(100)
def test_of_two_calls_that_want_the_second_fork_server_at_once_one_starts_it() -> None:
    """The other's would stay until the program ends, as no context knows it."""

    def at(line: int) -> int:
        with create_context("process?preload=json", max_workers=1) as context:
            refs: list[Any] = []
            run = lambda: refs.append(context.run(abs, -1))  # noqa: E731
            # Calls of an actor do not wait for those of tasks.
            make = lambda: refs.append(context.create_actor(Counter, 1).value())  # noqa: E731
            lines = interrupted(run, make, line, "fork_server_client")
            assert context.get(refs, timeout=60) == [1, 1]
            return lines

    for line in range(1, at(1), 3):
        at(line)
