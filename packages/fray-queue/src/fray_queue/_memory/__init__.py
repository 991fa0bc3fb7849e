"""A queue in the memory of one process."""
