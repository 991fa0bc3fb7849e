"""How a program ends that left its context open."""

import subprocess
import sys
import time

from fray.testing.context_fixtures import ContextFixtures
from fray.testing.gates import PATIENCE
from fray.testing.notes import Note, NoteServer

_HEAD = """
import sys, time
from fray import create_context
from fray.testing.notes import Note
context = create_context(sys.argv[1])
mark = Note.at(sys.argv[2])
def touch(mark, seconds):
    time.sleep(seconds)
    mark.add()
def say_end():
    print(time.time(), flush=True)
class Actor:
    def stay(self, mark, seconds):
        touch(mark, seconds)
"""


class ProgramEndContract(ContextFixtures):
    """Without `with`: a program that ends well waits for its tasks, one that fails waits for nothing."""

    def run_program(
        self, spec: str, body: str, mark: Note
    ) -> tuple[float, "subprocess.CompletedProcess[str]"]:
        """Run a program; return how long it took after it has called `say_end`."""
        command = [sys.executable, "-c", _HEAD + body, spec, str(mark)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
        ended = time.time()
        said = done.stdout.split()
        return ended - float(said[-1]) if said else 0.0, done

    def test_a_program_that_ends_well_waits_for_its_tasks(self, spec: str, notes: NoteServer) -> None:
        if not self.can.program_end:
            self.moot("program_end")
            return
        _, done = self.run_program(spec, "context.run(touch, mark, 0.5)", notes.note("mark"))
        assert (done.returncode, done.stderr) == (0, "")
        assert notes.note("mark").read()

    def test_a_program_that_ends_well_waits_for_tasks_of_a_context_that_takes_no_more(
        self, spec: str, notes: NoteServer
    ) -> None:
        if not self.can.program_end:
            self.moot("program_end")
            return
        body = "context.run(touch, mark, 0.5)\ncontext.shutdown(wait=False)"
        _, done = self.run_program(spec, body, notes.note("mark"))
        assert (done.returncode, done.stderr) == (0, "")
        assert notes.note("mark").read()

    def test_a_program_that_ends_well_waits_for_tasks_of_a_context_that_it_dropped(
        self, spec: str, notes: NoteServer
    ) -> None:
        if not self.can.program_end:
            self.moot("program_end")
            return
        body = "import gc\ncontext.run(touch, mark, 2.0)\ndel context\ngc.collect()"
        _, done = self.run_program(spec, body, notes.note("mark"))
        assert (done.returncode, done.stderr) == (0, "")
        assert notes.note("mark").read()

    def test_a_program_that_raises_waits_for_nothing(self, spec: str, notes: NoteServer) -> None:
        if not self.can.program_end or self.can.inline:
            self.moot("program_end")
            return
        body = "context.run(touch, mark, 60)\ntime.sleep(0.3)\nsay_end()\nraise ValueError('enough')"
        seconds, done = self.run_program(spec, body, notes.note("mark"))
        assert done.returncode == 1
        assert "ValueError: enough" in done.stderr
        assert seconds < 30

    def test_a_program_that_exits_with_a_failure_waits_for_nothing(
        self, spec: str, notes: NoteServer
    ) -> None:
        if not self.can.program_end or self.can.inline:
            self.moot("program_end")
            return
        body = "context.run(touch, mark, 60)\ntime.sleep(0.3)\nsay_end()\nsys.exit(3)"
        seconds, done = self.run_program(spec, body, notes.note("mark"))
        assert done.returncode == 3
        assert seconds < 30

    def test_calls_of_actors_that_never_end_are_named_and_given_up(
        self, spec: str, notes: NoteServer
    ) -> None:
        if not self.can.program_end or self.can.inline:
            self.moot("program_end")
            return
        body = "actor = context.create_actor(Actor)\nactor.stay(mark, 90)\nsay_end()"
        seconds, done = self.run_program(spec, body, notes.note("mark"))
        assert done.returncode == 0
        assert "Actor.stay()" in done.stderr
        assert 8 < seconds < 60
        assert not notes.note("mark").read()

    def test_calls_at_exit_work(self, spec: str, notes: NoteServer) -> None:
        if not self.can.program_end:
            self.moot("program_end")
            return
        body = "import atexit\natexit.register(lambda: context.get(context.run(touch, mark, 0)))"
        _, done = self.run_program(spec, body, notes.note("mark"))
        assert (done.returncode, done.stderr) == (0, "")
        assert notes.note("mark").read()
