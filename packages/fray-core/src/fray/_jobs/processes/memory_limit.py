"""How much memory this process may use."""

import os

from fray._jobs.processes.control_group import lines_of
from fray._jobs.processes.oom import memory_groups

_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of version 2, and of version 1


def memory_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the memory of the machine, or the least limit of the control groups that this process is in.

    In a container the group's name may be the host's, and what is mounted is the group itself: of a group
    that is not there, the groups above it count.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in memory_groups(proc, cgroups):
        while len(group) >= len(cgroups):
            for name in _LIMITS:
                limits += [int(line) for line in lines_of(os.path.join(group, name)) if line.isdecimal()]
            group = os.path.dirname(group)
    return min(limits)
