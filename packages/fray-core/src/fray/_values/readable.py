"""Waiting for files; see `readable`. It imports almost nothing, because supervisors do not either."""

import select


def readable(descriptors: list[int], seconds: float) -> set[int]:
    """Return which files can be read, or have ended, as soon as there is one.

    Not by `select.select`, which knows no descriptor beyond 1023: a process may have more than that.

    Args:
        seconds: After so long, none is returned.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    # Rounded up: a time that is due in less than a millisecond is waited for, not looked at in a loop.
    return {descriptor for descriptor, _ in poll.poll(-int(-1000.0 * max(0.0, seconds) // 1))}
