"""A control group (version 2) that holds one process tree, where the machine lets us make one.

The supervisor of a job stays outside, so that a limit is the job's, and a kill of the group ends nobody else.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_PREFIX = "fray-job-"  # how the groups of jobs begin


class ControlGroup:
    """The group of one job."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the group of a name, made or not; None where this machine lets us make none."""
        folder = cls.folder()
        return None if folder is None else cls(os.path.join(folder, f"{_PREFIX}{name}"))

    @staticmethod
    def folder() -> str | None:
        """Return where such groups can be made; None for nowhere."""
        return groups_folder()

    def below(self, name: str) -> ControlGroup | None:
        """Make a group within this one, which has no processes of its own then; None where that is refused.

        It counts memory where this group may.
        """
        if "memory" in _read(os.path.join(self.path, "cgroup.controllers")).split():
            self._write("cgroup.subtree_control", "+memory")
        path = os.path.join(self.path, name)
        try:
            os.mkdir(path, 0o755)
        except OSError:
            return None
        return ControlGroup(path)

    @classmethod
    def create(cls, name: str) -> Self | None:
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
        """Return the processes in the group, and in those below it."""
        text = _read(os.path.join(self.path, "cgroup.procs"))
        found = [int(line) for line in text.split() if line != "0"]
        return found + [pid for group in self._groups_below() for pid in group.pids()]

    def kill(self) -> bool:
        """Kill all processes in the group, at once; False for a group that is gone, which holds none."""
        return self._write("cgroup.kill", "1")

    def limit_memory(self, size: int) -> bool:
        """Have the kernel end what takes more than so many bytes, all together; False where it will not."""
        return self._write("memory.max", str(size))

    def memory_peak(self) -> int | None:
        """Return the most memory that its processes had together; None where nobody counts."""
        text = _read(os.path.join(self.path, "memory.peak"))
        return int(text) if text else None

    def cpu_time(self) -> float | None:
        """Return the seconds of CPU that its processes used; None where nobody counts."""
        for line in lines_of(os.path.join(self.path, "cpu.stat")):
            if line.startswith("usage_usec "):
                return int(line.split()[1]) / 1e6
        return None

    def remove(self) -> None:
        """Remove the group and those below it; one that still holds a process stays."""
        for group in self._groups_below():
            group.remove()
        try:
            os.rmdir(self.path)
        except OSError:
            return

    def _groups_below(self) -> list[ControlGroup]:
        try:
            with os.scandir(self.path) as entries:
                return [ControlGroup(entry.path) for entry in entries if entry.is_dir()]
        except OSError:
            return []

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
    folder = outside_of_jobs(own_group())
    if folder is None or _kernel() < (5, 14):  # which brought `cgroup.kill`
        return None
    return folder if os.access(os.path.join(folder, "cgroup.procs"), os.W_OK) else None


def outside_of_jobs(folder: str | None) -> str | None:
    """Return the nearest folder, from one upwards, that is of no job that we are in."""
    inside = folder
    while inside is not None and inside != os.path.dirname(inside):
        if os.path.basename(inside).startswith(_PREFIX):
            folder = os.path.dirname(inside)
        inside = os.path.dirname(inside)
    return folder


def limits_memory_of(folder: str | None) -> bool:
    """Whether groups that are made in a folder can be limited in memory."""
    return folder is not None and "memory" in _read(os.path.join(folder, "cgroup.subtree_control")).split()


def own_group() -> str | None:
    """Return the folder of the group that this process is in; None where there are none."""
    for line in lines_of("/proc/self/cgroup"):
        if line.startswith("0::"):
            mounted, path = _mount(), line[3:].strip("/")
            return mounted and (os.path.join(mounted, path) if path else mounted)
    return None


def _mount() -> str | None:
    for line in lines_of("/proc/self/mountinfo"):
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return place.split()[4]
    return None


def _kernel() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    return int(major), int("".join(char for char in rest.partition(".")[0] if char.isdigit()) or 0)


def lines_of(path: str) -> list[str]:
    """Return the lines of a file of the system; none where it is not there."""
    return _read(path).splitlines()


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
