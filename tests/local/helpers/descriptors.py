"""A process that can open few more files."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def few_descriptors(spare: int = 1) -> Iterator[None]:
    """Let this process open so many more files, and no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
