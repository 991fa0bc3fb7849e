"""A control group (version 2) that holds one process tree, where the machine lets us make one.

The supervisor of a job stays outside, so that a limit is the job's, and a kill of the group ends nobody else.
"""

from __future__ import annotations

import os

_PREFIX = "fray-job-"  # how the groups of jobs begin


class ControlGroup:
    """The group of one job."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def named(cls, name: str) -> ControlGroup | None:
        """Return the group of a name, made or not; None where this machine lets us make none."""
        folder = groups_folder()
        return None if folder is None else cls(os.path.join(folder, f"{_PREFIX}{name}"))

    @classmethod
    def create(cls, name: str) -> ControlGroup | None:
        """Make a group beside that of this process; None where this machine does not let us."""
        group = cls.named(name)
        try:
            if group is not None:
                os.mkdir(group.path, 0o755)
        except OSError:
            return None
        return group

    def enter(self) -> bool:
        """Move this process into the group, and with it whatever it starts; False where that is refused."""
        return self._write("cgroup.procs", "0")

    def pids(self) -> list[int]:
        """Return the processes in the group."""
        text = _read(os.path.join(self.path, "cgroup.procs"))
        return [int(line) for line in text.split() if line != "0"]

    def kill(self) -> bool:
        """Kill all processes in the group, at once; False for a group that is gone, which holds none."""
        return self._write("cgroup.kill", "1")

    def limit_memory(self, size: int) -> bool:
        """Have the kernel end what takes more than so many bytes, all together; False where it will not."""
        return self._write("memory.max", str(size))

    def remove(self) -> None:
        """Remove the group; one that still holds a process stays."""
        try:
            os.rmdir(self.path)
        except OSError:
            return

    def _write(self, name: str, text: str) -> bool:
        try:
            file = os.open(os.path.join(self.path, name), os.O_WRONLY)
        except OSError:
            return False
        try:
            os.write(file, text.encode())
        except OSError:
            return False
        finally:
            os.close(file)
        return True


def groups_folder() -> str | None:
    """Return where groups of jobs may be made: beside this process's own; None for nowhere."""
    folder = own_group()
    while folder is not None and os.path.basename(folder).startswith(_PREFIX):  # that of a job that we are in
        folder = os.path.dirname(folder)
    if folder is None or _kernel() < (5, 14):  # which brought `cgroup.kill`
        return None
    return folder if os.access(os.path.join(folder, "cgroup.procs"), os.W_OK) else None


def limits_memory(folder: str | None = None) -> bool:
    """Whether groups that are made here can be limited in memory: whether they have that controller."""
    folder = folder or groups_folder()
    return folder is not None and "memory" in _read(os.path.join(folder, "cgroup.subtree_control")).split()


def leave_group() -> None:
    """Move this process out of the group of a job, so that it does not end with the job."""
    folder = groups_folder()
    if folder is not None and own_group() != folder:
        ControlGroup(folder).enter()


def own_group() -> str | None:
    """Return the folder of the group that this process is in; None where there are none."""
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            mounted, path = _mount(), line[3:].strip("/")
            return mounted and (os.path.join(mounted, path) if path else mounted)
    return None


def _mount() -> str | None:
    for line in _read("/proc/self/mountinfo").splitlines():
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return place.split()[4]
    return None


def _kernel() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    return int(major), int("".join(char for char in rest.partition(".")[0] if char.isdigit()) or 0)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
