"""Actors that several programs share: who may have a name, who is found by it, and how they end."""

import asyncio
import contextlib
import fcntl
import json
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from descriptors import few_descriptors

from fray import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorNotFoundError,
    ActorOptions,
    ContextClosedError,
    JobContext,
    create_context,
    get_job_context,
)
from fray.testing.command_line import main
from fray.testing.deadline import deadline
from fray.testing.gates import Gate, until
from fray.testing.interrupting import interrupted
from fray.testing.tasks import Counter


def is_stopped(pid: int) -> bool:
    return all("State:\tT" in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))


def fill_up(path: Path, ends: ExitStack) -> None:
    """Connect to a socket until it has room for no more connections."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock = ends.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                sock.connect(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)


LOAD_AND_CALL = """
    import pickle, sys
    from fray import FrayError, create_context, use_context
    with create_context("process", max_workers=1) as context, use_context(context):
        try:
            print(context.get(pickle.loads(bytes.fromhex(sys.argv[1])).value(), timeout=60))
        except FrayError as error:
            print(type(error).__name__)
"""


def elsewhere(code: str, *args: str) -> str:
    """Run a program; return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def kill(counter: Any) -> None:
    get_job_context().kill(counter)


class Mortal:
    def pid(self) -> int:
        return os.getpid()


def is_dead(context: JobContext, call: Callable[[], Any]) -> bool:
    try:
        context.get(call(), timeout=60)
    except ActorDiedError:
        return True
    return False


@pytest.fixture
def programs() -> Iterator[tuple[JobContext, JobContext]]:
    """Two contexts of one namespace, whose path is longer than a socket's may be."""
    with ExitStack() as ends:
        made = [create_context("process", max_workers=2, namespace="team" * 30) for _ in range(2)]
        first, second = map(ends.enter_context, made)
        yield first, second


class TestNames:
    def test_a_program_that_can_open_no_more_files_takes_no_name_of_a_living_actor(
        self, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, second = programs
        counter = first.create_actor(Counter, 5, name="tally")
        assert first.get(counter.value(), timeout=60) == 5
        assert second.get(second.run(abs, -1), timeout=60) == 1
        for spare in range(6):
            with few_descriptors(spare), pytest.raises((OSError, ActorAlreadyExistsError)):
                second.create_actor(Counter, name="tally")
        assert second.get(second.get_actor("tally").value(), timeout=60) == 5

    def test_an_actor_of_a_later_version_keeps_its_name(
        self, programs: tuple[JobContext, JobContext], state_dir: Path
    ) -> None:
        first, second = programs
        first.create_actor(Counter, 5, name="tally")
        [file] = (state_dir / "actors").glob("*/*.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"said_by_a_later_version": [1]}))
        with pytest.raises(ActorAlreadyExistsError):
            second.create_actor(Counter, name="tally")
        assert second.get(second.get_actor("tally").value(), timeout=60) == 5

    def test_a_handle_of_an_actor_that_is_gone_finds_no_other_one_of_its_name(
        self, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, _ = programs
        counter = first.create_actor(Counter, 1, name="tally")
        pickled = pickle.dumps(counter)
        first.kill(counter)
        again = first.create_actor(Counter, 2, name="tally")
        assert first.get(again.value(), timeout=60) == 2
        assert elsewhere(LOAD_AND_CALL, pickle.dumps(again).hex()) == "2\n"
        assert elsewhere(LOAD_AND_CALL, pickled.hex()) == "ActorNotFoundError\n"

    def test_a_context_that_was_shut_down_finds_nothing(
        self, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, second = programs
        counter = second.create_actor(Counter, 1, name="tally")
        assert [second.get(counter.value(), timeout=60), first.get(first.run(abs, -1), timeout=60)] == [1, 1]
        first.shutdown()
        for name in ("tally", "other"):
            with pytest.raises(ContextClosedError):
                first.get_actor(name)
        with pytest.raises(ContextClosedError):
            first.create_actor(Counter, name="tally", get_if_exists=True)

    @pytest.mark.parametrize("namespace", [".", ".."])
    def test_a_namespace_of_dots_is_a_folder_of_its_own(self, namespace: str, state_dir: Path) -> None:
        state_dir.mkdir(mode=0o755)
        with create_context("process", max_workers=1, namespace=namespace) as context:
            counter = context.create_actor(Counter, 1, name="tally")
            assert context.get(counter.value(), timeout=60) == 1
            assert [path.name for path in state_dir.iterdir()] == ["actors"]
            assert [path.is_dir() for path in (state_dir / "actors").iterdir()] == [True]
            assert stat.S_IMODE(state_dir.stat().st_mode) == 0o755
            assert main(["actors", "kill", "tally", "--namespace", namespace, "--timeout", "60"]) == 0

    def test_an_actor_that_is_stopped_keeps_its_name_and_nobody_waiting(
        self, programs: tuple[JobContext, JobContext], state_dir: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, second = programs
        mortal = first.create_actor(Mortal, name="stopped")
        pid = first.get(mortal.pid(), timeout=60)
        with ExitStack() as ends, deadline(60):
            os.kill(pid, signal.SIGSTOP)
            ends.callback(os.kill, pid, signal.SIGCONT)
            until(lambda: is_stopped(pid), "each of its threads is stopped", 20)
            fill_up(next((state_dir / "actors").glob("*/*.sock")), ends)
            assert main(["actors", "list"]) == 0
            assert "stopped" in capsys.readouterr().out
            with pytest.raises(ActorNotFoundError, match="stopped"):
                second.get_actor("another")
            with pytest.raises(TimeoutError, match=r"Mortal\('stopped'\) has accepted no connection"):
                second.get_actor("stopped")
            assert main(["actors", "kill", "stopped"]) == 1
            assert "has accepted no connection" in capsys.readouterr().err
        assert second.get(second.get_actor("stopped").pid(), timeout=60) == pid

    def test_nobody_takes_an_actor_for_the_earlier_one_of_its_name(
        self, programs: tuple[JobContext, JobContext], state_dir: Path
    ) -> None:
        first, second = programs
        earlier = first.create_actor(Mortal, name="name")
        [file] = (state_dir / "actors").glob("*/*.json")
        left = file.read_text()
        first.kill(earlier)
        found: list[Any] = []

        def look() -> None:
            with contextlib.suppress(ActorNotFoundError):
                found.append(second.get_actor("name"))

        line, lines = 0, 1
        while line < lines:
            line += 1
            file.write_text(left)  # as a program does that was killed
            made: list[Any] = []
            make = partial(first.create_actor, Counter, line, name="name")
            lines = interrupted(lambda: made.append(make()), look, line, "actor_directory")  # noqa: B023
            for counter in found:
                assert second.get(counter.value(), timeout=60) == line
            first.kill(made[0])
            while found:
                until(partial(is_dead, second, found.pop().value), "the other program has noticed")
        assert lines > 10


@pytest.fixture
def locked(state_dir: Path) -> Iterator[Callable[[], int]]:
    """Keep all others from changing what is known of shared actors, as a stopped program would."""
    with ExitStack() as files:

        def lock() -> int:
            [path] = (state_dir / "actors").glob("*/.lock")
            file = files.enter_context(path.open("rb+"))
            fcntl.flock(file, fcntl.LOCK_EX)
            return file.fileno()

        yield lock


class TestKilling:
    def test_a_program_answers_its_tasks_while_one_of_them_kills_an_actor(
        self, programs: tuple[JobContext, JobContext], locked: Callable[[], int]
    ) -> None:
        first, _ = programs
        counter = first.create_actor(Counter, name="tally")
        assert first.get([counter.value(), first.run(abs, -1)], timeout=60) == [0, 1]
        lock = locked()
        killing = first.run(kill, counter)
        with pytest.raises(ActorDiedError, match="it was killed"):
            until(lambda: first.get(counter.value(), timeout=60) != 0, "it is dead", 60)
        assert first.get(first.run(abs, -2), timeout=60) == 2
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert first.get(killing, timeout=60) is None

    def test_a_program_answers_its_tasks_after_a_shared_actor_has_died(
        self, programs: tuple[JobContext, JobContext], locked: Callable[[], int]
    ) -> None:
        first, _ = programs
        mortal = first.create_actor(Mortal, name="mortal")
        pid, _ = first.get([mortal.pid(), first.run(abs, -1)], timeout=60)
        lock = locked()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorDiedError, match="SIGKILL"):
            until(lambda: first.get(mortal.pid(), timeout=60) != pid, "it is dead", 60)
        assert first.get(first.run(abs, -2), timeout=60) == 2
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert first.get(first.create_actor(Mortal, name="mortal").pid(), timeout=60) != pid

    def test_an_actor_can_be_killed_where_no_more_files_can_be_opened(
        self, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, second = programs
        own, detached = [
            first.create_actor(Mortal, name=lifetime, lifetime=lifetime) for lifetime in ("job", "detached")
        ]
        pids = first.get([own.pid(), detached.pid()], timeout=60)
        others = second.get_actor("detached")
        assert second.get(others.pid(), timeout=60) == pids[1]
        with few_descriptors(0):
            first.kill(own)
            second.kill(others)
        with pytest.raises(ActorDiedError, match="it was killed"):
            first.get(own.pid(), timeout=60)
        until(lambda: is_dead(first, detached.pid), "the detached one has ended")
        # Their records could not be removed: the names are free when nobody listens there any more.
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "so have their processes")
        for name in ("job", "detached"):
            assert first.get(first.create_actor(Counter, 3, name=name).value(), timeout=60) == 3

    @pytest.mark.parametrize("by", ["a program", "the command line"])
    def test_an_actor_that_another_program_has_killed_is_not_made_anew(
        self, by: str, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, second = programs
        counter = first.create_actor(Counter, options=ActorOptions(name="tally", max_restarts=3))
        assert first.get(counter.increment(), timeout=60) == 1
        if by == "a program":
            second.kill(second.get_actor("tally"))
        else:
            assert main(["actors", "kill", "tally", "--timeout", "60"]) == 0
        until(lambda: is_dead(first, counter.value), "its owner has noticed")
        with pytest.raises(ActorDiedError, match="another program has killed it"):
            first.get(counter.increment(), timeout=60)
        with pytest.raises(ActorNotFoundError):
            first.get_actor("tally")
        again = second.create_actor(Counter, 7, name="tally")
        assert first.get(first.get_actor("tally").value(), timeout=60) == second.get(again.value()) == 7


class Phoenix(Mortal):
    """Its later lives wait for a gate before they begin."""

    def __init__(self, lived: Path, gate: Gate) -> None:
        if lived.exists():
            gate.wait()
        lived.touch()

    def hold(self, runs: Path, never: Gate) -> None:
        with runs.open("a") as file:
            file.write("ran ")
        never.wait()


class TestRestarts:
    def test_handles_of_other_programs_find_the_actor_that_was_made_again(
        self, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, second = programs
        actor = first.create_actor(Mortal, options=ActorOptions(name="mortal", max_restarts=2))
        handle = second.get_actor("mortal")
        pids = [second.get(handle.pid(), timeout=60)]
        for _ in range(2):
            os.kill(pids[-1], signal.SIGKILL)
            until(lambda: not is_dead(second, handle.pid), "it is made again")
            pids.append(second.get(handle.pid(), timeout=60))
        assert len(set(pids)) == 3
        assert first.get(actor.pid(), timeout=60) == pids[-1]
        os.kill(pids[-1], signal.SIGKILL)
        until(lambda: is_dead(second, handle.pid), "it is dead")
        with pytest.raises(ActorDiedError, match="is gone"):
            second.get(handle.pid(), timeout=60)
        until(lambda: is_dead(first, actor.pid), "it is dead there as well")

    @pytest.fixture
    def lost(
        self, programs: tuple[JobContext, JobContext], tmp_path: Path
    ) -> Iterator[tuple[Any, Any, Gate]]:
        """An actor, and a handle of another program, which has noticed that the first life is over."""
        first, second = programs
        runs, gate, never = tmp_path / "runs", Gate(tmp_path / "gate"), Gate(tmp_path / "never")
        options = ActorOptions(name="phoenix", max_restarts=1)
        actor = first.create_actor(Phoenix, tmp_path / "lived", gate, options=options)
        handle = second.get_actor("phoenix")
        pid = second.get(handle.pid(), timeout=60)
        sent = [handle.hold(runs, never), handle.pid()]
        until(lambda: runs.exists() and runs.read_text(), "the first of them runs")
        os.kill(pid, signal.SIGKILL)
        for ref in sent:
            with pytest.raises(
                ActorDiedError, match=r"may have run (hold|pid)\(\); the actor may be made again"
            ):
                second.get(ref, timeout=60)
        try:
            yield actor, handle, gate
        finally:
            gate.open()
        assert runs.read_text() == "ran "

    def test_calls_that_come_meanwhile_wait_for_it(
        self, programs: tuple[JobContext, JobContext], lost: tuple[Any, Any, Gate]
    ) -> None:
        first, second = programs
        actor, handle, gate = lost
        calls = [handle.pid(), handle.pid()]
        assert second.wait(calls, timeout=0.2) == ([], calls)
        gate.open()
        pid = first.get(actor.pid(), timeout=60)
        assert second.get(calls, timeout=60) == [pid, pid]

    def test_it_can_be_killed_meanwhile(
        self, programs: tuple[JobContext, JobContext], lost: tuple[Any, Any, Gate]
    ) -> None:
        first, second = programs
        actor, handle, _ = lost
        second.kill(handle)
        with pytest.raises(ActorDiedError, match="it was killed"):
            second.get(handle.pid(), timeout=60)
        until(lambda: is_dead(first, actor.pid), "its owner has noticed")
        with pytest.raises(ActorNotFoundError):
            second.get_actor("phoenix")


class Recorder:
    def __init__(self) -> None:
        self.calls = 0

    def add(self, size: int) -> bytes:
        self.calls += 1
        return bytes(size)

    def count(self) -> int:
        return self.calls


class Account:
    """Takes two steps, between which it must not be left."""

    def __init__(self) -> None:
        self.begun = self.ended = self.closed = 0

    def move(self, started: Gate, gate: Gate) -> None:
        self.begun += 1
        started.open()
        gate.wait()
        self.ended += 1

    def numbers(self, started: Gate, gate: Gate) -> Iterator[int]:
        try:
            self.move(started, gate)
            yield from range(1_000_000)
        finally:
            self.closed += 1

    def state(self) -> tuple[int, int, int]:
        return self.begun, self.ended, self.closed


class AsyncAccount:
    def __init__(self) -> None:
        self.begun = self.ended = self.closed = 0

    async def move(self, started: Gate, gate: Gate) -> None:
        self.begun += 1
        started.open()
        await asyncio.to_thread(gate.wait)
        self.ended += 1

    async def numbers(self, started: Gate, gate: Gate) -> AsyncIterator[int]:
        try:
            await self.move(started, gate)
            for number in range(1_000_000):
                yield number
        finally:
            self.closed += 1

    async def state(self) -> tuple[int, int, int]:
        return self.begun, self.ended, self.closed


class TestCallers:
    @pytest.mark.parametrize("kind", [Account, AsyncAccount])
    @pytest.mark.parametrize("method", ["move", "numbers"])
    def test_what_runs_for_a_caller_that_is_gone_runs_to_its_end(
        self, method: str, kind: Any, programs: tuple[JobContext, JobContext], tmp_path: Path
    ) -> None:
        first, _ = programs
        account = first.create_actor(kind, name="account")
        assert first.get(account.state(), timeout=60) == (0, 0, 0)
        started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
        calls = 2 if kind is Account else 1  # the second has not started; an async actor begins all
        code = f"""
            import os
            from pathlib import Path
            from fray import create_context
            from fray.testing.gates import Gate
            context = create_context("process", max_workers=1, namespace="team" * 30)
            account = context.get_actor("account")
            started, gate = Gate(Path({os.fspath(started.path)!r})), Gate(Path({os.fspath(gate.path)!r}))
            calls = [getattr(account, "{method}")(started, gate) for _ in range({calls})]
            started.wait()
            os._exit(0)
        """
        elsewhere(code)
        waiting = first.run(abs, -1)  # time in which an interruption would come
        assert first.get(waiting, timeout=60) == 1
        gate.open()
        wanted = (1, 1, 1 if method == "numbers" else 0)
        until(lambda: first.get(account.state(), timeout=20) == wanted, f"it is {wanted}", 20)

    def test_a_caller_that_is_stopped_keeps_no_other_one_waiting(
        self, programs: tuple[JobContext, JobContext]
    ) -> None:
        first, _ = programs
        count, size = 60, 60_000  # so few that all are sent before it stops
        recorder = first.create_actor(Recorder, name="recorder")
        assert first.get(recorder.count(), timeout=60) == 0
        code = f"""
            import os, signal
            from fray import create_context
            with create_context("process", max_workers=1, namespace="team" * 30) as context:
                recorder = context.get_actor("recorder")
                refs = [recorder.add({size}) for _ in range({count})]
                os.kill(os.getpid(), signal.SIGSTOP)
                print([len(value) for value in context.get(refs, timeout=60)] == [{size}] * {count})
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
            try:
                os.waitpid(caller.pid, os.WUNTRACED)
                assert until(lambda: first.get(recorder.count(), timeout=20) == count, "all have run", 30)
                os.kill(caller.pid, signal.SIGCONT)
                assert caller.communicate(timeout=60)[0] == "True\n"
            finally:
                caller.kill()
