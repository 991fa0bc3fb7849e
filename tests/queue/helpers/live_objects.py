"""What is alive in this process, for tests of what a server keeps."""

import gc


def count_of(kind: str) -> int:
    """Count the objects of a class, by its name."""
    gc.collect()
    return sum(type(each).__name__ == kind for each in gc.get_objects())
