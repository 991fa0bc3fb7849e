"""What a context of worker processes can do, for its owner and inside its workers alike."""

from fray.backend import ContextCapabilities

CAPABILITIES = ContextCapabilities(
    serializes=True,
    max_workers=True,
    isolation=True,
    streams=True,
    parked_streams=True,
    run_ahead=64,
    nested_tasks=True,
    nested_threads=True,
    actors=True,
    named_actors=True,
    shared_actors=True,
    detached_actors=True,
    concurrent_actors=True,
    async_actors=True,
    interrupting_cancel=True,
    enforced_resources=True,
    at_most_once=True,
    retries=True,
    max_restarts=True,
    runtime_env=True,
    reentrant=True,
    program_end=True,
    executor=True,
)
