"""The clocks that leases in a store run on. None is moved by a step of the wall clock."""

import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LeaseClock:
    """Seconds on an axis of its own, and how they translate to seconds since the epoch.

    Args:
        axis: Names the axis: times that a store kept under another name have to be translated.
    """

    def __init__(
        self, now: Callable[[], float], axis: str, *, epoch: Callable[[], float] = time.time
    ) -> None:
        self.now, self.axis, self._epoch = now, axis, epoch

    def offset(self) -> float:
        """Return what turns a time on the axis into seconds since the epoch."""
        return self._epoch() - self.now()


def boot_clock() -> LeaseClock:
    """Return the clock that all processes of this machine share: the seconds since it was started."""
    boottime = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return LeaseClock(lambda: time.clock_gettime(boottime), _boot_id())


def process_clock() -> LeaseClock:
    """Return a clock of this process: while it is down, its leases do not run."""
    return LeaseClock(time.monotonic, uuid.uuid4().hex)


def manual_clock(now: Callable[[], float]) -> LeaseClock:
    """Return a test's clock, which returns seconds since the epoch."""
    return LeaseClock(now, "manual", epoch=now)


@cache
def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    # Without a name of this boot, no lease outlives the process that opened the store.
    return uuid.uuid4().hex
