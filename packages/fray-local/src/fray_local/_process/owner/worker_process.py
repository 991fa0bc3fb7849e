"""One worker process, as the caller's process sees it."""

import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from functools import partial

from fray_local._process.owner.event_loop import Channel, EventLoop
from fray_local._process.owner.fork_server_client import (
    ForkServers,
    current_directory,
    import_path,
)
from fray_local._process.owner.interfaces import Requests
from fray_local._process.owner.output_forwarder import OutputForwarder
from fray_local._process.owner.worker_connection import WorkerConnection, WorkerOwner
from fray_local._process.protocol.held_frames import SIZE, last_started, unsent
from fray_local._process.protocol.messages import Loaded, Message, Request, WorkerSettings
from fray_local._process.protocol.values import memory_file
from fray_local._process.protocol.wire import close_all, describe_failure
from fray_local._process.worker.leaving import KILLED

_HINT = "; if nobody sent it, the system had run out of memory"


class WorkerProcess(WorkerConnection):
    """A process of this context's fork server.

    Args:
        listener: A listening socket, given away to the worker, at which other processes may call it too.
    """

    def __init__(
        self,
        loop: EventLoop,
        fork_servers: ForkServers,
        owner: WorkerOwner,
        requests: Requests,
        env: dict[str, str],
        concurrency: int = 1,
        listener: socket.socket | None = None,
    ) -> None:
        super().__init__(owner, requests.budget, concurrency)
        self._loop, self._fork_servers, self._requests = loop, fork_servers, requests
        self._why = ""  # this process ended it
        ours, reads, given, self._mark = _files()
        writers = requests.outputs.stdout, requests.outputs.stderr
        self._outputs = [
            OutputForwarder(read, writer, loop, requests) for read, writer in zip(reads, writers, strict=True)
        ]
        self._held: deque[tuple[Callable[[], None], bool]] = deque()  # and whether it shows what was printed
        self.channel = Channel(loop, ours, self._handle, self._unheard)
        self.channel.listen()
        for output in self._outputs:
            loop.call_soon(output.watch)
        settings = WorkerSettings(env, import_path(), current_directory(), requests.owner, concurrency)
        if listener is not None:
            given.append(listener.detach())
        try:
            fork_servers.fork(self, settings, given, Closing(given))
        except BaseException:
            self.channel.hang_up(self._close_files)
            raise

    def _unheard(self, error: Exception) -> None:
        """The fork server reports its end; where it cannot be understood any more, it has to end."""
        if not isinstance(error, EOFError):
            self._why = f"was ended: {describe_failure(error)}"
            self.kill()

    def _handle(self, message: Message, descriptors: list[int]) -> None:
        """Handle a message; what a task printed comes out before its result does."""
        shows = getattr(message, "wrote", False)
        if shows or self._held:
            self._in_order(partial(super()._handle, message, descriptors), shows=shows)
        else:
            super()._handle(message, descriptors)

    def _in_order(self, act: Callable[[], None], *, shows: bool) -> None:
        """Do something after what came before; with `shows`, once what was printed is written, or soon."""
        self._held.append((act, shows))
        if len(self._held) == 1:
            self._go_on()

    def _go_on(self) -> None:
        while self._held:
            act, shows = self._held[0]
            if shows and not self._is_output_written():
                self._requests.outputs.look_later(self._go_on)
                return
            for output in self._outputs:
                output.begin_wait()
            self._held.popleft()
            self._loop.guarded(act)

    def _is_output_written(self) -> bool:
        try:
            written = [output.is_written() for output in self._outputs]  # a look at both
        except Exception:  # noqa: BLE001 - no memory, say: an answer is never lost
            return True
        return all(written)

    def runs(self, number: int) -> bool:
        """On the loop's thread: whether that is the call which it has come to."""
        return self._mark >= 0 and last_started(os.pread(self._mark, SIZE, 0)) == number

    def kill(self) -> None:
        """End it now."""
        self._fork_servers.kill(self.number)

    def other(self, message: Message, descriptors: deque[int]) -> None:
        """Handle its messages: perform its orders, answer its requests."""
        if isinstance(message, Request):
            self._requests.handle(self, message, descriptors)
        elif isinstance(message, Loaded):
            self._fork_servers.loaded(message.modules)
        else:
            super().other(message, descriptors)

    # From the fork server, on the loop's thread.

    def started(self, pid: int) -> None:
        """It runs."""
        self.pid = pid

    def failed(self, reason: str) -> None:
        """It could not be started."""
        self._end_with(f"could not be started: {reason}", 0)

    def ended(self, status: int) -> None:
        """It is gone; what it sent before still counts."""
        self.channel.drain()
        memory = os.pread(self._mark, SIZE, 0)
        self.channel.recover(*unsent(memory))
        self._end_with(self._why or _how(status), last_started(memory), killed=status == KILLED)

    def _end_with(self, how: str, last_started: int, *, killed: bool = False) -> None:
        """Pass on what it printed, and then what became of its calls."""
        self._close_files()
        self._in_order(partial(self._mark_lost, how, last_started, killed), shows=True)

    def _close_files(self) -> None:
        mark, self._mark = self._mark, -1
        os.close(mark)
        for output in self._outputs:
            output.close()

    def _mark_lost(self, how: str, last_started: int, killed: bool) -> None:
        self.was_killed = killed
        self._fork_servers.forget(self.number)
        self._requests.withdraw_all(self)
        self._requests.break_promises(self, how)
        self.gone(how, last_started)


def _files() -> tuple[socket.socket, list[int], list[int], int]:
    """Return the owner's socket, the ends of two pipes to read, what the worker is given, and the mark."""
    made: list[int] = []
    ours, theirs = socket.socketpair()
    try:
        for _ in range(2):
            made += os.pipe()
        made.append(memory_file(SIZE, "worker"))
        made.append(os.dup(made[-1]))
    except BaseException:
        ours.close()
        theirs.close()
        close_all(made)
        raise
    first, out, second, err, mark, its_mark = made
    return ours, [first, second], [theirs.detach(), out, err, its_mark], mark


class Closing:
    """Closes descriptors once they have been sent."""

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "a signal"
    hint = _HINT if -status == signal.SIGKILL else ""
    return f"was ended by {name} (signal {-status}){hint}"
