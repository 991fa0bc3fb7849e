"""The fork server: a process of one thread that forks workers, reports how they ended, and ends them.

It never sees the owner's program, so that a worker starts in milliseconds with nothing imported but
Fray, and a fork copies no lock that another thread holds. When the owner is gone, however it went,
its socket closes, and the fork server kills the workers and ends. A second one imports what it is
told to (`Preload`), so that its workers need not.

On Linux it is a subreaper, and so is each worker: what a task started belongs to the worker as long
as that lives, whatever session it made for itself, and comes to the fork server, which kills it, when
the worker ends. Elsewhere the worker's process group is killed, and a process that left it survives.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, NoReturn

from fray.backend import OUTLIVES_JOBS, become_subreaper, die_with_parent, process_tree
from fray_local._process.protocol.messages import (
    Exited,
    Fork,
    Forked,
    ForkFailed,
    KillWorker,
    Message,
    Preload,
    Preloaded,
    StartDetached,
    WorkerSettings,
)
from fray_local._process.protocol.values import raise_descriptor_limit
from fray_local._process.protocol.wire import Reader, adopted, close_all, send_all
from fray_local._process.worker.main import work

_QUIET_MILLISECONDS = 20.0
_END_SECONDS = 5.0  # for what workers left to die
_THREAD_SECONDS = 0.5  # for threads that have ended to be gone
_DETACHED_ACTOR = (
    "import sys; sys.path[:] = {path!r}; "
    "from fray_local._process.worker.detached_actor import main; main(*{descriptors})"
)
_NOT_OURS = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)  # sent to all of a program, which takes them
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, *_NOT_OURS)


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it is gone."""
    raise_descriptor_limit()
    become_subreaper()
    gc.freeze()  # what is there now is never garbage: collections need not touch, and copy, its pages
    ForkServer(adopted(descriptor)).serve()


class ForkServer:
    """Forks on request; everything that happens to it comes through `serve`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._reader = sock, Reader(sock)
        self._workers: dict[int, int] = {}  # process id -> number
        self._detached: set[int] = set()
        self._prepared = False
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._wake_end = wake
        for number in _SIGNALS:
            signal.signal(number, _noted)  # only SIGCHLD is for us: the caller decides when workers end

    def serve(self) -> None:
        """Fork, kill and report until the caller's socket closes; then leave nobody."""
        try:
            sources = select.poll()  # select() refuses descriptors beyond 1023, which a caller may have
            sources.register(self._sock, select.POLLIN)
            sources.register(self._wake, select.POLLIN)
            while True:
                ready = [source for source, _ in sources.poll(self._until_prepared())]
                if not ready:
                    self._prepare()
                if self._wake in ready:
                    os.read(self._wake, 4096)
                    self._reap()
                if self._sock.fileno() in ready:
                    for message, descriptors in self._reader.read():
                        self._handle(message, descriptors)
        except (EOFError, ConnectionError):
            self._end()

    def _until_prepared(self) -> float | None:
        return _QUIET_MILLISECONDS if self._workers and not self._prepared else None

    def _prepare(self) -> None:
        """Load, once the first worker is on its way, what functions of `__main__` need in the next ones."""
        import cloudpickle  # noqa: F401

        self._prepared = True
        gc.freeze()

    def _handle(self, message: Message, descriptors: list[int]) -> None:
        if isinstance(message, Fork):
            self._fork(message, descriptors)
        elif isinstance(message, StartDetached):
            self._start_detached(message, descriptors)
        elif isinstance(message, Preload):
            self._preload(message.modules)
        elif isinstance(message, KillWorker):
            for pid in [pid for pid, number in self._workers.items() if number == message.number]:
                process_tree.send_group(pid, signal.SIGKILL)

    def _preload(self, modules: list[str]) -> None:
        """Import what workers had imported; what fails here fails there, where a user sees it."""
        import importlib
        import io

        silence, before = io.StringIO(), _open_files()
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            for name in modules:
                with contextlib.suppress(BaseException):
                    importlib.import_module(name)
        gc.freeze()
        # Workers would share what is open, and a lock that another thread holds would stay locked in them.
        send_all(self._sock, Preloaded(fit=_open_files() <= before and not _has_threads()))

    def _fork(self, message: Fork, descriptors: list[int]) -> None:
        number = message.number
        try:
            pid = os.fork()
        except OSError as error:  # the system's limit on processes or memory
            close_all(descriptors)
            send_all(self._sock, ForkFailed(number, str(error)))
            return
        if pid == 0:
            self._become_worker(number, message.settings, descriptors)
        with contextlib.suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(pid, pid)
        self._workers[pid] = number
        close_all(descriptors)
        send_all(self._sock, Forked(number, pid))

    def _become_worker(self, number: int, settings: WorkerSettings, descriptors: list[int]) -> NoReturn:
        code = 1
        try:
            server = os.getppid()
            signal.set_wakeup_fd(-1)
            for name in _SIGNALS:
                # A handler, for the programs that tasks start: unlike SIG_IGN it does not outlive exec.
                signal.signal(name, _noted if name in _NOT_OURS else signal.SIG_DFL)
            os.setpgid(0, 0)
            _die_with_parent(server)
            become_subreaper()
            close_all([self._sock.detach(), self._wake, self._wake_end])
            _reseed()
            work(number, settings, *descriptors)
            code = 0
        except BaseException:  # noqa: BLE001 - the child must never continue as a second fork server
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)

    def _start_detached(self, settings: StartDetached, descriptors: list[int]) -> None:
        """Start a program that outlives everybody here: a detached actor."""
        try:
            pid = os.fork()
        except OSError as error:  # what waits for the actor sees that its socket closes
            close_all(descriptors)
            with contextlib.suppress(OSError):
                os.write(2, f"fray: a detached actor could not be started: {error}\n".encode())
            return
        if pid == 0:
            try:
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDONLY)
                log = os.open(settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                for source, target in ((nothing, 0), (log, 1), (log, 2)):
                    os.dup2(source, target)
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, True)
                for name in (*_SIGNALS, signal.SIGPIPE):
                    signal.signal(name, signal.SIG_DFL)
                code = _DETACHED_ACTOR.format(path=settings.path, descriptors=descriptors)
                os.execve(sys.executable, [sys.executable, "-c", code, OUTLIVES_JOBS], settings.env)  # noqa: S606
            finally:
                os._exit(1)
        self._detached.add(pid)
        close_all(descriptors)

    def _reap(self) -> None:
        while (ended := _ended_child()) is not None:
            pid, status = ended
            number = self._workers.pop(pid, None)
            if number is not None:
                process_tree.send_group(pid, signal.SIGKILL)
            if status is None:
                _, status = os.waitpid(pid, 0)
            if pid not in self._detached:
                process_tree.send(self._orphans(), signal.SIGKILL)
            self._detached.discard(pid)
            if number is not None:
                with contextlib.suppress(OSError):
                    send_all(self._sock, Exited(number, os.waitstatus_to_exitcode(status)))

    def _orphans(self) -> list[int]:
        """Return what dead workers left: all children but the workers, and what is to outlive its program."""
        found = _children() - self._workers.keys() - self._detached
        if not found:
            return []
        from fray.backend import SUPERVISOR_MODULE  # of a job that a task launched

        lasting = {SUPERVISOR_MODULE, OUTLIVES_JOBS}
        return [pid for pid in found if lasting.isdisjoint(process_tree.command_of(pid))]

    def _end(self) -> None:
        for pid in self._workers:
            process_tree.send_group(pid, signal.SIGKILL)
        end = time.monotonic() + _END_SECONDS
        while time.monotonic() < end:
            for pid in list(self._workers):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                del self._workers[pid]
            orphans = self._orphans()
            if not orphans:
                return
            process_tree.send(orphans, signal.SIGKILL)
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _ended_child() -> tuple[int, int | None] | None:
    """Return a child that has ended, reaped and with its status, or still a zombie and without."""
    try:
        if hasattr(os, "waitid"):
            # Look first, reap later: as long as it is a zombie, its group's number is nobody else's.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return None if ended is None else (ended.si_pid, None)
        pid, status = os.waitpid(-1, os.WNOHANG)  # macOS before Python 3.13
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _children() -> set[int]:
    """Return this process's children; none where the system does not hand orphans to it."""
    return set(process_tree.children_of(os.getpid())) if sys.platform == "linux" else set()


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - every worker would pay for the import of pathlib


def _has_threads() -> bool:
    """Whether a fork here leaves threads out: those of Python, and those that no fork handler ends."""
    if threading.active_count() > 1 or sys.platform != "linux":
        return threading.active_count() > 1
    pid = os.fork()  # OpenBLAS, for one, ends its threads before a fork and starts them again on demand
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    end = time.monotonic() + _THREAD_SECONDS
    while len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - see above
        if time.monotonic() > end:
            return True
        time.sleep(0.01)  # one that has been joined is listed for a moment yet
    return False


def _reseed() -> None:
    """Have random numbers of its own: the fork has copied NumPy's; `random` sees to itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _die_with_parent(parent: int) -> None:
    if sys.platform != "linux":  # there, the end of the socket shows it
        return
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _noted(number: int, frame: Any) -> None:
    """Do nothing: in the fork server a handler must exist for a signal to be written to the pipe."""
