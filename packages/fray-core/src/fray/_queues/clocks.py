"""Clocks that leases run on."""

import time

_OFFSET = time.time() - time.monotonic()


def steady_time() -> float:
    """Return seconds since the epoch as this process knew them when it started, plus those that passed.

    A step of the wall clock does not move it, so no lease ends early or late by one.
    """
    return time.monotonic() + _OFFSET
