"""What is alive in this process, for tests of what a server keeps."""

import gc
import time


def count_of(kind: str) -> int:
    """Count the objects of a class, by its name."""
    gc.collect()
    return sum(type(each).__name__ == kind for each in gc.get_objects())


def await_count(kind: str, most: int, seconds: float = 60.0) -> None:
    """Wait until no more than so many objects of a class are alive.

    A count keeps the interpreter to itself: the server has it for as long between two of them.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        found = count_of(kind)
        if found <= most:
            return
        now = time.monotonic()
        assert now < end, f"{found} of {kind} are alive, not {most}"
        time.sleep(max(0.01, now - began))
