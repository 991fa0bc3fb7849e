"""What happens to open contexts when the program ends.

A program that ends normally waits for its tasks; actor calls that are still under way get a while, then
they are named on stderr. A program that fails waits for nothing.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import ref

from fray._engine.calls import current_call
from fray._engine.engine import Engine
from fray._engine.waiting import await_one

ACTOR_SECONDS = 10.0
"""Seconds that calls of actors get at the end of a program that ends well."""


class Ending(Protocol):
    """A context that can be left open to the end of its program."""

    def at_program_end(self, failed: bool) -> None:
        """Wait for what was submitted, or, where the program failed, for nothing; end what would stay."""


class EngineEnding(Protocol):
    """A context over an engine of ours."""

    engine: Engine

    def abort(self) -> None:
        """Wait for nothing, and end what can be ended."""

    def end_of_program(self) -> None:
        """Everything was waited for: end what would outlive the process."""


def end_at_exit(context: Ending) -> None:
    """Let a context end with the program: after what was submitted, or at once where the program failed.

    The functions that the program itself registers with `atexit` later than this run before.
    """
    _watch_exits()
    atexit.register(_AtExit(context))


class _AtExit:
    """What `atexit` calls for one context, which it does not keep alive."""

    def __init__(self, context: Ending) -> None:
        self._context = ref(context, self._forget)

    def __call__(self) -> None:
        context = self._context()
        if context is not None:
            context.at_program_end(program_failed())

    def _forget(self, _: Any) -> None:
        atexit.unregister(self)


class _Exit(SystemExit):
    """A `SystemExit` that knows whether it ended the program.

    Where the interpreter releases it, after nothing has caught it, no frame of Python is left.
    """

    def __del__(self) -> None:
        global _failed
        try:
            sys._getframe(1)
        except ValueError:
            main = threading.current_thread() is threading.main_thread()
            _failed = main and self.code not in (None, 0)


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"
_Exit.__module__ = "builtins"  # as tracebacks call it
_failed = False
_exit = None


def _watch_exits() -> None:
    """Learn of `sys.exit` with a failure: unlike an exception it leaves no trace for `atexit` functions."""
    global _exit
    if _exit is None:
        _exit = sys.exit
        sys.exit = _noted_exit  # type: ignore[assignment]


def _noted_exit(status: Any = None, /) -> None:
    """Exit the interpreter by raising SystemExit(status); see the standard library's `sys.exit`."""
    raise _Exit(status)


def program_failed() -> bool:
    """Return whether the program ends by an exception, or by `sys.exit` with a failure; for `atexit`."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return False  # an exception at the prompt ended nothing
    return _failed or getattr(sys, "last_value", None) is not None


def await_program_end(engine: Engine) -> bool:
    """Wait for tasks, and for a while for calls of actors; False where some of these had to be given up."""
    while tasks := [call for call in engine.open_calls() if call.kind == "task" and not call.over]:
        for task in tasks:
            await_one(task if task.streaming else task.ref)
            while task.streaming and not task.over and task in engine.scope.open:
                time.sleep(0.01)  # a stream has an end only after its items
    deadline = time.monotonic() + ACTOR_SECONDS
    while calls := [call for call in engine.open_calls() if not call.over]:
        left = deadline - time.monotonic()
        if left <= 0 or not await_one(calls[0] if calls[0].streaming else calls[0].ref, left):
            name_given_up({f"{call.actor.label}.{call.method}()" for call in calls})
            return False
    return True


def name_given_up(calls: Iterable[str]) -> None:
    """Name on stderr the calls of actors that are not waited for any longer."""
    sys.stderr.write(
        f"fray: the program has ended; after {ACTOR_SECONDS:.0f} s these calls of actors still run "
        f"and are given up: {', '.join(sorted(set(calls)))}\n"
    )


def end_engine(context: EngineEnding, failed: bool) -> None:
    """Do `at_program_end` for a context over an engine of ours."""
    if context.engine.scope.foreign or current_call() is not None:
        return
    if failed or not await_program_end(context.engine):
        context.abort()
    else:
        context.end_of_program()


def _forget() -> None:
    global _failed
    _failed = False


os.register_at_fork(after_in_child=_forget)
