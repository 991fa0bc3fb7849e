"""Times and sizes as people read them."""

from __future__ import annotations

import time


def duration(start: float | None, end: float | None) -> str:
    """Write the time from `start` to `end`, or to now: `0.4s`, `42s`, `3m10s`, `2h05m`, `3d4h`."""
    if start is None:
        return "-"
    passed = max(0.0, (time.time() if end is None else end) - start)
    if passed < 10:
        return f"{passed:.1f}s"
    minutes, seconds = divmod(int(passed), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


def age(start: float | None) -> str:
    """Write how long ago something was, in one unit: `12s ago`, `5m ago`, `3d ago`."""
    if start is None:
        return "-"
    passed = max(0.0, time.time() - start)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if passed >= 2 * size:
            return f"{passed // size:.0f}{unit} ago"
    return f"{passed:.0f}s ago"


def in_words(size: int) -> str:
    """Write an amount of memory: `800 MiB`."""
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.3g} {units[0]}" if amount < 1000 else f"{amount:.0f} {units[0]}"
