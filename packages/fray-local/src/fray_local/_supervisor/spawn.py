"""Start a child of the supervisor: in a session of its own, its output in a file, signals as usual.

Plain fork and exec: the supervisor has one thread and is small, and `subprocess` would cost it a
third of its start.
"""

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

_FAILED = 1


def start_program(argv: list[str], environ: "Mapping[str, str]", cwd: str, log: str) -> int:
    """Start a program and return its process id once it runs.

    Raises:
        OSError: It could not be started; the child is gone.
    """
    told, tell = os.pipe()  # closed by a successful exec, so that reading it ends

    def become() -> "NoReturn":
        try:
            _settle(cwd, log)
            os.execvpe(argv[0], argv, environ)  # noqa: S606 - no shell is the point
        except OSError as error:
            os.write(tell, f"{error.errno} {error.filename or argv[0]}".encode())
        os._exit(127)

    pid = _fork(become)
    os.close(tell)
    failure = os.read(told, 4096).decode()
    os.close(told)
    if failure:
        os.waitpid(pid, 0)
        number, _, name = failure.partition(" ")
        raise OSError(int(number), os.strerror(int(number)), name)
    return pid


def start_function(act: "Callable[[], None]", cwd: str, log: str) -> int:
    """Run a function in a child process and return its id; what it raises is printed, and exits with 1."""

    def become() -> "NoReturn":
        code = _FAILED
        try:
            _settle(cwd, log)
            act()
            code = 0
        except SystemExit as error:
            print(error.code, flush=True)
        except BaseException:  # noqa: BLE001 - the child must never go on as a second supervisor
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    return _fork(become)


def _fork(become: "Callable[[], NoReturn]") -> int:
    pid = os.fork()
    if pid == 0:
        become()
    return pid


def _settle(cwd: str, log: str) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, programs do not expect that
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    os.chdir(cwd)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
