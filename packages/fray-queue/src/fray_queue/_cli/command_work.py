"""`fray queue work URL -- COMMAND`: a command for each item, whose exit code decides."""

import contextlib
import errno
import json
import locale
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import click

from fray import FrayError
from fray.backend import descendants, kill_until_gone, retry_delays
from fray_queue._cli.access import Access, open_at, reaching
from fray_queue._cli.command_pipes import exchange
from fray_queue._work.command_orphans import OrphanKiller
from fray_queue._work.endings import ending_of

_PLACE = "{}"  # of the item in a command's arguments
# No processes, no memory, no descriptors, and a program that is being written: all of them pass.
_OF_THE_MACHINE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
_LONGEST_PAUSE = 5.0


class CommandFailedError(FrayError, RuntimeError):
    """The command of an item ended with another exit code than 0."""


class Command:
    """Runs a command for each item, in any thread.

    What it writes to its standard output is the reply, where one was requested: text, without the last
    newline; a byte that is none in the system's encoding is a replacement character. All bytes are also
    written to this program's output, when the command has ended: lines of two are not mixed. What it leaves
    in the background is not waited for, and can write no more.

    Args:
        arguments: Those that are `{}` become the item; where there is none the item is on standard input.
    """

    def __init__(self, arguments: tuple[str, ...], time_limit: float | None) -> None:
        self._arguments, self._time_limit = arguments, time_limit
        self._encoding = locale.getpreferredencoding(do_setlocale=False)
        self.unwritten: BrokenPipeError | click.ClickException | None = None
        """Why the output of commands can be written no more."""
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._orphans = OrphanKiller()

    def __call__(self, item: Any) -> str:
        """Run the command and return what it wrote."""
        text = text_of(item)
        placed = [text if each == _PLACE else each for each in self._arguments]
        # A line that `fray queue push` read has its bytes again, as arguments have, whatever they are.
        by_input = placed == list(self._arguments)
        given = text.encode(self._encoding, "surrogateescape") if by_input else None
        with self._orphans.watching() as environment:
            process = self._start(
                placed, environment, subprocess.DEVNULL if given is None else subprocess.PIPE
            )
            try:
                return self._wait(process, given)
            finally:
                with self._lock:
                    self._running.discard(process)
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        with contextlib.suppress(OSError):  # what was not written is dropped
                            stream.close()

    def _start(
        self, command: list[str], environment: dict[str, str], stdin: int
    ) -> "subprocess.Popen[bytes]":
        """Start a command; while the machine cannot, try again: the item is not what is wrong."""
        said = False
        for pause in retry_delays(longest=_LONGEST_PAUSE):
            try:
                return self._start_once(command, environment, stdin)
            except OSError as error:
                if error.errno not in _OF_THE_MACHINE:
                    raise
                if not said:
                    why = f"{command[0]} cannot be started now, and is tried again: {error.strerror}"
                    click.echo(why, err=True)
                said = True
            self._closed.wait(pause)
        raise AssertionError  # the delays never end

    def _start_once(
        self, command: list[str], environment: dict[str, str], stdin: int
    ) -> "subprocess.Popen[bytes]":
        with self._lock:  # `close` finds each command that runs, and none starts after it
            if self._closed.is_set():
                raise CommandFailedError(f"{command[0]} was not started: the pool has ended")
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C is for `work`, which gives it time to finish
            )
            self._running.add(process)
            return process

    def _wait(self, process: "subprocess.Popen[bytes]", given: bytes | None) -> str:
        written: list[bytes] = []
        try:
            in_time = exchange(process, given or b"", self._time_limit, written)
            if not in_time:
                _kill(process)
                exchange(process, b"", None, written)
        except BaseException:
            _kill(process)
            raise
        output = b"".join(written)
        self._show(output)
        if not in_time:
            raise CommandFailedError(f"{self._arguments[0]} ran for more than {self._time_limit:g} s")
        if process.returncode:
            raise CommandFailedError(f"{self._arguments[0]} {ending_of(process.returncode)}")
        answer = output.decode(self._encoding, errors="replace")
        return answer.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")

    def _show(self, output: bytes) -> None:
        """Write what a command wrote; where that is impossible, end the pool, whose items go back.

        Each further command would run for nothing, and its item become a dead letter.
        """
        try:
            click.echo(output, nl=False)
        except BrokenPipeError as error:
            self.unwritten = error
            raise SystemExit(1) from error
        except OSError as error:
            told = f"the output of {self._arguments[0]} cannot be written: {error.strerror}"
            self.unwritten = click.ClickException(told)
            raise SystemExit(1) from error

    def close(self) -> None:
        """Kill what still runs, with all that it started, and start no more."""
        self._closed.set()
        with self._lock:
            running = list(self._running)
        for process in running:
            _kill(process)
        self._orphans.close()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    kill_until_gone(lambda: [] if process.poll() is not None else [process.pid, *descendants(process.pid)])
    process.wait()


def text_of(item: Any) -> str:
    """Return an item as a command gets it: text as it is, everything else as JSON."""
    return item if isinstance(item, str) else json_of(item)


def json_of(item: Any) -> str:
    """Return an item as JSON; what JSON cannot have is shown by its `repr`."""
    try:
        return json.dumps(item, default=repr, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, NaN, an object inside itself
        return json.dumps(repr(item))


@click.command()
@click.argument("url")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Commands at a time."
)
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), help="Seconds of one command, at most."
)
@click.option(
    "--retries", type=click.IntRange(min=0), default=0, show_default=True, help="Before an item goes back."
)
@click.option(
    "--lease-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds after which others get the items of a worker that died.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to finish at the end.",
)
@click.option("--stop-when-empty", is_flag=True, help="End when nothing is left.")
@reaching
def work(
    url: str,
    command: tuple[str, ...],
    concurrency: int,
    time_limit: float | None,
    retries: int,
    lease_timeout: float,
    grace: float,
    stop_when_empty: bool,
    access: Access,
) -> None:
    """Run COMMAND for each item of the queue at URL, until SIGTERM, SIGHUP or Ctrl-C.

    The item is on its standard input, or in the place of an argument `{}`: text as it is, everything else as
    JSON. The item is done when COMMAND ends with exit code 0, and goes back to the queue otherwise. What
    it wrote to its standard output is the reply, as text, to a push with `reply=True`; where it fails for
    good they get an error that says how it ended. Processes that it leaves in the background are not waited
    for. If its output cannot be written any more (`| head`, a full disk), the pool ends, and the item goes
    back. Unpickles what others pushed: trust them.

    fray queue work sqlite:q.db -- convert {} -resize 50% out.png
    """
    from fray_queue._work.work import work as pool

    opened = open_at(url, access)
    _look_up(command[0])
    run = Command(command, time_limit)
    try:
        with _hangup_as_sigterm():
            summary = pool(
                opened,
                run,
                concurrency=concurrency,
                retries=retries,
                lease_timeout=lease_timeout,
                grace=grace,
                stop_when_empty=stop_when_empty,
            )
    except KeyboardInterrupt:
        summary = None
    except SystemExit:
        raise run.unwritten or SystemExit(1) from None
    finally:
        run.close()
        if hasattr(opened, "close"):
            opened.close()
    if summary is None:
        raise SystemExit(130)
    click.echo(f"{summary.done} done, {summary.failed} failed, {summary.released} given back", err=True)


@contextlib.contextmanager
def _hangup_as_sigterm() -> Iterator[None]:
    """Let a closed terminal end the pool: commands have sessions of their own, and would run on."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:  # `nohup` has it ignored
        yield
        return
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _look_up(program: str) -> None:
    """Refuse a program that is not there before an item is taken: each would fail."""
    import shutil

    if shutil.which(program) is None:
        raise CommandFailedError(
            f"there is no program {program!r}" + ("" if os.sep in program else " on the PATH")
        )
