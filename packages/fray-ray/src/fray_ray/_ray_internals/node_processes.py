"""The processes of one Ray node, started as Ray starts them itself: `ray start`, which is public, takes 6 s.

Import it when the variables of the cluster are set: Ray reads them when it is imported.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from ray._private import services
from ray._private.node import Node
from ray._private.parameter import RayParams


def start_node(*, head: bool, registers_within: float, **params: Any) -> Any:
    """Start a node as children of this process, which alone ends them. Read in Ray 2.60.

    Args:
        registers_within: Seconds that it may take to register; Ray gives it 30, and a busy host needs more.
        params: As `RayParams` takes them.
    """
    # No reaper, and nothing at exit: this process ends what it started.
    with _patience(registers_within):
        return Node(RayParams(**params), head=head, shutdown_at_exit=False, spawn_reaper=False)


def dead_processes(node: Any) -> list[str]:
    """Return the kinds of a node's processes that have ended by themselves. Read in Ray 2.60."""
    return [str(kind) for kind, _ in node.dead_processes()]


def end_node(node: Any) -> None:
    """End a node's processes, and wait for them. Read in Ray 2.60."""
    node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[None]:
    look = services.get_node

    def wait_for_node(*given: Any) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return look(*given)  # type: ignore[no-untyped-call]
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.get_node = wait_for_node
    try:
        yield
    finally:
        services.get_node = look
