"""Fork a child that is in a control group from its first moment.

A process that is moved into a group waits until every CPU has passed a quiet point, 12 ms on an idle machine:
as long as all else that a launch needs. `clone3`, which has no wrapper in Python, starts a child in the group
without that.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._jobs.processes.control_group import ControlGroup

_CLONE3 = 435  # on every architecture: asm-generic/unistd.h
_CLONE_INTO_CGROUP = 0x2_0000_0000  # linux/sched.h
_ARGUMENTS = 11  # of struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, ..., cgroup


def fork_into(group: ControlGroup | None) -> int:
    """Fork this process, which has one thread; the child of a group must be one that soon runs a program.

    Where the system refuses `clone3`, as some containers do, the child enters the group by itself.
    """
    if group is None:
        return os.fork()
    pid = _clone_into(group.path) if sys.platform == "linux" else -1
    if pid < 0:
        pid = os.fork()
        if pid == 0:
            group.enter()
    return pid


def _clone_into(folder: str) -> int:
    """Fork into the group of a folder; -1 where that is refused."""
    import ctypes

    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        values = [_CLONE_INTO_CGROUP, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, 0, 0, file]
        arguments = (ctypes.c_uint64 * _ARGUMENTS)(*values)
        # PyDLL: the interpreter's lock is held throughout, so that the child has it too.
        call = ctypes.PyDLL(None).syscall
        return int(call(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(ctypes.sizeof(arguments))))
    finally:
        os.close(file)
