"""The head's data on nodes."""

from typing import Any

from ray._private.state import state


def draining_nodes() -> dict[str, float]:
    """Return the nodes that are draining, each with its deadline. Read in Ray 2.60.

    Deadlines are milliseconds since the epoch; 0 is none.
    """
    return dict(state.get_draining_nodes())


def free_resources_of_nodes() -> dict[str, dict[str, float]]:
    """Return what is free on each living node, by its id. Read in Ray 2.60."""
    free: Any = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return dict(free)
