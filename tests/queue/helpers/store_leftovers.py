"""What tests on object stores may leave, for the process and not for a test; a module imports the fixture."""

import pytest


@pytest.fixture
def process_wide() -> tuple[str, ...]:
    """What may stay: fsspec's thread and its connections, the store's on this side, a helper of spawn."""
    return (
        r"^thread (fsspecIO|asyncio_\d|Thread-\d+ \(process_request)",
        r"-> (socket|anon_inode):",
        "multiprocessing.resource_tracker|-> pipe:",  # of what spawns the workers
    )
