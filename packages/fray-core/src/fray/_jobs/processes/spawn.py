"""Start a child of a supervisor: in a session of its own, ended when the supervisor is.

Plain fork and exec: the supervisor has one thread and is small, and `subprocess` would cost it a third of its
start.
"""

from __future__ import annotations

import errno
import os
import signal

from fray._jobs.process_tree import SUPERVISORS_IGNORE, USER_SIGNALS, die_with_parent
from fray._jobs.processes.fork_into import fork_into

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import NoReturn

    from fray._jobs.processes.control_group import ControlGroup

_FAILED = 1
_HANDLED = (signal.SIGCHLD, *SUPERVISORS_IGNORE)
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python; programs do not expect that


def start_program(
    argv: tuple[str, ...],
    environ: Mapping[str, str],
    cwd: str,
    output: int,
    group: ControlGroup | None = None,
    limited_by: ControlGroup | None = None,
    blocked: Collection[int] = (),
    ignored: Collection[int] = (),
) -> int:
    """Start a program and return its process id once it runs.

    Args:
        output: The file for what it writes.
        group: The control group that it starts in.
        limited_by: Another that it enters; it does not start where that is refused.
        blocked: Signals that wait until the program is ready for them.
        ignored: Signals that the program ignores from its start on; the others have their defaults.

    Raises:
        OSError: It could not be started; the child is gone.
    """
    told, tell = os.pipe()  # closed by a successful exec, so that reading it ends

    def become() -> NoReturn:
        try:
            _settle(cwd, output, blocked, ignored)
            if limited_by is not None and not limited_by.enter():
                raise PermissionError(errno.EACCES, "", limited_by.path)
            os.execvpe(argv[0], argv, environ)  # noqa: S606 - no shell is the point
        except OSError as error:
            os.write(tell, b"%d %b" % (error.errno or errno.EIO, os.fsencode(error.filename or argv[0])))
        finally:  # the child must never continue as a second supervisor
            os._exit(127)

    pid = fork_into(group)
    if pid == 0:
        become()
    os.close(tell)
    failure = os.fsdecode(os.read(told, 4096))
    os.close(told)
    if failure:
        os.waitpid(pid, 0)
        number, _, name = failure.partition(" ")
        raise OSError(int(number), os.strerror(int(number)), name)
    return pid


def start_function(act: Callable[[], None], cwd: str, output: int, group: ControlGroup | None = None) -> int:
    """Run a function in a child process and return its id; what it raises is printed, and exits with 1.

    The function is Fray's own: the child and what that runs ignore `USER_SIGNALS`.
    """

    def become() -> NoReturn:
        code = _FAILED
        try:
            _settle(cwd, output, ignored=USER_SIGNALS)
            if group is not None:
                group.enter()
            act()
            code = 0
        except SystemExit as error:
            print(error.code, flush=True)
        except OSError as error:  # a full disk, a folder that is gone: no traceback explains it
            print(f"{type(error).__name__}: {error}", flush=True)
        except BaseException:  # noqa: BLE001 - the child must never continue as a second supervisor
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    pid = os.fork()
    if pid == 0:
        become()
    return pid


def _settle(cwd: str, output: int, blocked: Collection[int] = (), ignored: Collection[int] = ()) -> None:
    signal.set_wakeup_fd(-1)
    for number in (*_HANDLED, *_IGNORED):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.setsid()
    die_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.chdir(cwd)  # where that fails, the output says so
