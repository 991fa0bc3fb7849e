"""What an attempt used: its memory at the most, and CPU time. Imports little, as a supervisor does."""

import os
import sys
import time

from fray._values.words import in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Iterable

_EVERY = 0.5  # seconds between two looks
_PROC = sys.platform == "linux"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


class UsageMeter:
    """Measures the processes of an attempt while they run, and takes the system's figures at their end.

    Samples miss what is short; the system's own figures miss processes that were not waited for. The larger
    of the two is taken.
    """

    def __init__(self) -> None:
        self.peak_memory: int | None = None
        self.memory = 0
        """What the last sample found."""
        self._cpu: dict[int, tuple[str, float]] = {}  # by process: when it started, and its CPU time
        self._cpu_of_gone = 0.0
        self._reaped = 0.0
        self._next = 0.0

    @property
    def cpu_time(self) -> float | None:
        """Seconds of CPU until now."""
        total = max(self._cpu_of_gone + sum(cpu for _, cpu in self._cpu.values()), self._reaped)
        return round(total, 3) if total or self._reaped else None

    def due(self) -> bool:
        """Whether it is time for a sample, which costs a look at every process."""
        return time.monotonic() >= self._next

    def sample(self, pids: "Iterable[int]") -> None:
        """Look at the processes of the attempt."""
        self._next = time.monotonic() + _EVERY
        own, shared = 0, 0
        for pid in pids:
            found = _measure(pid)
            if found is not None:
                started, cpu, resident, common = found
                if pid in self._cpu and self._cpu[pid][0] != started:
                    self._cpu_of_gone += self._cpu[pid][1]
                self._cpu[pid] = started, cpu
                own += resident - common
                shared = max(shared, common)  # of processes that were forked: mostly the same pages
        for pid in [pid for pid in self._cpu if _is_gone(pid)]:
            self._cpu_of_gone += self._cpu.pop(pid)[1]
        self.memory = own + shared
        if own + shared > 0:
            self.peak_memory = max(self.peak_memory or 0, own + shared)

    def counted(self, peak_memory: int | None, cpu_time: float | None) -> None:
        """Take the system's figures of all processes of the attempt, where it counts them together."""
        self.peak_memory = peak_memory or self.peak_memory
        self._reaped = max(self._reaped, cpu_time or 0.0)

    def reaped(self, usage: "resource.struct_rusage | None") -> None:
        """Take the system's figures of the main process, and of the children that it waited for."""
        if usage is not None:
            self._reaped = max(self._reaped, usage.ru_utime + usage.ru_stime)
            self.peak_memory = max(self.peak_memory or 0, usage.ru_maxrss * _MAXRSS_UNIT)


def over_asked(peak: int | None, asked: int | None) -> str | None:
    """Return the warning that more memory was used than was requested; None where it was not."""
    if peak is None or asked is None or peak <= asked:
        return None
    return f"asked {in_words(asked)}, used {in_words(peak)}"


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:  # or it is another user's by now
        return isinstance(error, ProcessLookupError)
    return False


def _measure(pid: int) -> "tuple[str, float, int, int] | None":
    """When a process started, its CPU time, its memory, and how much of that others may share."""
    if not _PROC:
        return _measure_elsewhere(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
        return (
            stat[19].decode(),
            (int(stat[11]) + int(stat[12])) / _TICKS,
            int(resident) * _PAGE,
            int(shared) * _PAGE,
        )
    except (OSError, ValueError, IndexError):
        return None


def _measure_elsewhere(pid: int) -> "tuple[str, float, int, int] | None":
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return str(process.create_time()), times.user + times.system, process.memory_info().rss, 0
    except (psutil.Error, OSError):
        return None
