"""A Ray cluster of one job on its own nodes: what a cluster's launcher needs to know of it.

Imports no Ray: a launch need not wait for that.
"""

from collections.abc import Sequence


class RayOnAGang:
    """Ray's `fray.backend.GangRuntime`; `fray_ray._on_node.gang_member` is what runs."""

    def command(
        self, program: Sequence[str], *, python: str, cpus: int, memory: int, gpus: int = 0
    ) -> list[str]:
        """See `GangRuntime.command`."""
        amounts = [f"--cpus={cpus}", f"--memory={memory}", f"--gpus={gpus}"]
        return [python, "-P", "-m", "fray_ray._on_node.gang_member", *amounts, "--", *program]


RAY_ON_A_GANG = RayOnAGang()
