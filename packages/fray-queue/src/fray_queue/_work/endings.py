"""How a process ended, in words."""

import contextlib
import signal


def ending_of(code: int | None) -> str:
    """Return how a process ended, from its `returncode`; it continues a sentence."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):  # most real-time signals have no name
        name = signal.Signals(-code).name
    return f"was ended by {name}"
