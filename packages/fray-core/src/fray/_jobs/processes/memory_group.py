"""Control groups of version 1, for the one thing that version 2 cannot do beside them: limit memory.

A controller belongs to one version at a time. Where the machine gives that of memory to version 1, the tree
of a job is held by a group of version 2, and its memory is limited by one of version 1.
"""

from __future__ import annotations

import os

from fray._jobs.processes.control_group import (
    ControlGroup,
    limits_memory_of,
    lines_of,
    outside_of_jobs,
    own_group,
)
from fray._values.light_tuples import NamedTuple


class JobGroups(NamedTuple):
    """The groups of one job, as far as the machine lets it have any.

    Args:
        tree: Holds all of its processes.
        memory: Limits their memory, where that is not done by `tree`.
    """

    tree: ControlGroup | None = None
    memory: MemoryGroup | None = None

    @property
    def folders(self) -> list[str]:
        """Where these groups are."""
        return [group.path for group in self if group is not None]

    def remove(self) -> None:
        """Remove them, when the job has ended."""
        for group in self:
            if group is not None:
                group.remove()


class MemoryGroup(ControlGroup):
    """A group of version 1 with the memory controller."""

    @staticmethod
    def folder() -> str | None:
        """Return where such groups can be made; None for nowhere."""
        folder = outside_of_jobs(_own_memory_group())
        return folder if folder and os.access(os.path.join(folder, "cgroup.procs"), os.W_OK) else None

    def limit_memory(self, size: int) -> bool:
        """See `ControlGroup.limit_memory`."""
        return self._write("memory.limit_in_bytes", str(size))


def limits_memory(folder: str | None = None) -> bool:
    """Whether the memory of jobs can be limited, by groups made in a folder, or in this process's."""
    if folder is not None:
        return limits_memory_of(folder)
    return limits_memory_of(ControlGroup.folder()) or MemoryGroup.folder() is not None


def leave_group() -> None:
    """Move this process out of the groups of a job, so that it does not end with the job, or by its limit."""
    for kind, own in ((ControlGroup, own_group()), (MemoryGroup, _own_memory_group())):
        folder = outside_of_jobs(own)
        if folder is not None and folder != own:
            kind(folder).enter()


def groups_named(name: str) -> JobGroups:
    """Return the groups that the job of a name may have."""
    return JobGroups(ControlGroup.named(name), MemoryGroup.named(name))


def _own_memory_group() -> str | None:
    for line in lines_of("/proc/self/cgroup"):
        _, kinds, path = line.split(":", 2)
        if "memory" in kinds.split(","):
            mount = _mount()
            return mount and os.path.join(mount, path.strip("/"))
    return None


def _mount() -> str | None:
    for line in lines_of("/proc/self/mountinfo"):
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup ") and "memory" in kind.split()[2].split(","):
            return place.split()[4]
    return None
