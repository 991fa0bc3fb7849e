"""How often the system has killed a process of ours to regain memory."""

from __future__ import annotations

import os

from fray._jobs.processes.control_group import lines_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_COUNTERS = (("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill"))


def oom_kills(groups: Iterable[str] = (), proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the kills that were counted for these control groups; 0 where nobody counts.

    Where they are not counted: those of this process's own group, or of the machine.
    """
    for directory in (*groups, *memory_groups(proc, cgroups)):
        for name, key in _COUNTERS:
            count = _read(os.path.join(directory, name), key)
            if count is not None:
                return count
    return _read(os.path.join(proc, "vmstat"), "oom_kill") or 0


def memory_groups(proc: str, cgroups: str) -> list[str]:
    """Return the directories of this process's memory group, in version 2 and in version 1."""
    found = []
    for line in lines_of(os.path.join(proc, "self", "cgroup")):
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            found.append(os.path.join(cgroups, path.lstrip("/")))
        elif "memory" in kinds.split(","):
            found.append(os.path.join(cgroups, "memory", path.lstrip("/")))
    return found


def _read(path: str, key: str) -> int | None:
    for line in lines_of(path):
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return None
