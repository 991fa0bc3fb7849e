"""A job's own process on the head: `python -m fray_ray._head.job_process SUBMISSION SHELL SUPERVISOR`.

The scheduler carries the job; this process stands for it in Ray's table. It connects to the scheduler, waits
for the end of the job, and ends with its exit code. It passes on Ray's request to end. Where the scheduler is
killed it waits for the next one. Where the shell that started it is gone, or Ray's supervisor of the job, the
parent of that shell, it ends: Ray has lost the job then. It imports almost nothing, to be small.
"""

import fcntl
import os
import select
import signal
import socket
import sys
import time

END, STOP = b"\0\0", b"stop\n"
_PAUSE = 0.2  # seconds between two tries to connect
_SCHEDULER_WITHIN = 20.0  # seconds for which Ray may take to restart a scheduler that was killed
_LOOK = 1.0  # seconds between looks for Ray's supervisor
_STOPPED_BY_RAY_WITHIN = 5.0  # seconds in which the caller of `terminate` has Ray stop this process
_PIECE = 4096  # bytes


class JobProcess:
    """Waits for the end of one job.

    Args:
        path: Where the scheduler listens.
        shell: The id of the process that has started this one, and may be gone already.
        supervisor: The id of that of Ray which has started the shell, and may be gone too.
    """

    def __init__(self, submission: str, path: str, shell: str, supervisor: str) -> None:
        self._submission, self._path, self._parent = submission, path, os.getppid()
        self._shell, self._supervisor = int(shell), int(supervisor)
        if is_gone(self._shell):  # then the parent is not what is to be watched
            os._exit(1)
        self._link: socket.socket | None = None
        self._told = False  # to end

    def run(self) -> int:
        """Return the exit code of the job."""
        signal.signal(signal.SIGTERM, self._pass_on)
        while True:
            self._connect()
            answer = self._answer()
            if not answer:  # the scheduler is gone, or could not take the job up just now
                time.sleep(_PAUSE)
            if answer == b"stopped":
                return self._leave_to_ray()
            if answer.startswith(b"exit "):
                return int(answer[5:])

    def _connect(self) -> None:
        alone_since = time.monotonic()
        while True:
            link = self._connected()
            if link is not None:
                self._link = link
                if self._told:  # before there was a link that `_pass_on` could use
                    self._pass_on()
                return
            self._check_parent()
            if time.monotonic() - alone_since > _SCHEDULER_WITHIN:
                start_scheduler(self._path)
                alone_since = time.monotonic()
            time.sleep(_PAUSE)

    def _connected(self) -> "socket.socket | None":
        """Return a connection to a scheduler that knows whose it is; None where none can be had."""
        link = None
        try:
            link = socket.socket(socket.AF_UNIX)
            link.connect(self._path)
            link.sendall(self._about())
        except OSError:
            if link is not None:
                link.close()
            return None
        return link

    def _about(self) -> bytes:
        variables = (f"{name}={value}" for name, value in os.environ.items())
        words = [self._submission, os.getcwd(), *variables]  # noqa: PTH109 - pathlib is large
        return "\0".join(words).encode(errors="surrogateescape") + END

    def _answer(self) -> bytes:
        """Return what the scheduler says of the job; nothing where it is gone."""
        assert self._link is not None
        said, look = b"", select.poll()
        look.register(self._link, select.POLLIN)
        while b"\n" not in said:
            ready = look.poll(_LOOK * 1000)
            self._check_parent()
            try:
                piece = self._link.recv(_PIECE) if ready else None
            except OSError:
                piece = b""
            if piece == b"":
                self._link.close()
                self._link = None
                return b""
            said += piece or b""
        return said.partition(b"\n")[0]

    def _check_parent(self) -> None:
        """End where Ray has lost the job.

        Ray ends the shell of a supervisor that is gone, but not while that starts it.
        """
        supervisor = parent_of(self._shell)
        if os.getppid() != self._parent or supervisor not in (None, self._supervisor):
            os._exit(1)

    def _pass_on(self, *_: object) -> None:
        self._told = True
        if self._link is not None:
            try:
                self._link.sendall(STOP)
            except OSError:  # the next scheduler gets it
                return

    def _leave_to_ray(self) -> int:
        """Wait for Ray to stop this process of a stopped job, which makes it STOPPED in Ray's table, too."""
        if not self._told:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(_STOPPED_BY_RAY_WITHIN)
        return 1


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also where its own parent has not taken note of that yet."""
    try:
        os.kill(pid, 0)
        return _stat(pid)[0] in (b"Z", b"X")
    except ProcessLookupError:
        return True
    except OSError:  # another user's, or a system without /proc
        return False


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None where that cannot be known."""
    try:
        return int(_stat(pid)[1])
    except OSError:
        return None


def _stat(pid: int) -> list[bytes]:
    """Return what Linux says of a process, from its state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is large
        return file.read().rpartition(b")")[2].split()


def start_scheduler(path: str) -> None:
    """Have the cluster have a scheduler: Ray does not restart one that was ended for good.

    Of the processes of all jobs one does so at a time: what starts it holds a lock while it runs.

    Args:
        path: Where the scheduler will listen.
    """
    try:  # noqa: SIM105 - contextlib is large
        os.waitpid(-1, os.WNOHANG)  # an earlier one that has ended
    except ChildProcessError:
        pass
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # noqa: PTH103, PTH120 - pathlib is large
        lock = os.open(f"{path}.starts", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a full disk, say: the next try may have a better one
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(lock, True)
        environ = {name: value for name, value in os.environ.items() if name != "RAY_JOB_CONFIG_JSON_ENV_VAR"}
        command = [sys.executable, "-m", "fray_ray._head.start_scheduler"]
        os.posix_spawn(sys.executable, command, environ)
    except OSError:  # another one holds the lock, or the machine has no process left
        return
    finally:
        os.close(lock)


def main() -> int:
    """Be small, and wait for the end of the job."""
    if not sys.flags.isolated:
        from fray_ray._scheduler import socket_path

        path = socket_path(os.environ["RAY_ADDRESS"])
        command = [sys.executable, "-I", "-S", __file__, sys.argv[1], path, *sys.argv[2:]]
        os.execv(sys.executable, command)  # noqa: S606
    return JobProcess(*sys.argv[1:]).run()


if __name__ == "__main__":
    sys.exit(main())
