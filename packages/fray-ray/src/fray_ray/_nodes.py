"""What Ray knows of a node that is about to leave."""

from ray._private.state import state


def is_drained(node_id: str | None) -> bool:
    """Whether a node was told that it will be taken away; programs on it hear of that, and may end for it."""
    return node_id in state.get_draining_nodes()
