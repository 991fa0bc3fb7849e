"""Simulated TPU slices: their hosts are processes of this machine, for tests of training code.

They are counted as slices and nothing else: 16 hosts of 200 CPUs each run on a laptop.
"""

import os
from dataclasses import dataclass
from typing import Any

from fray import JobRequest
from fray.backend import check_count, invalid
from fray_local._supervisor.gang import variables
from fray_local._supervisor.ledger import Ledger
from fray_resources import TpuConfig

# What a host finds in its environment, and what a job that it launches must not inherit.
HOST_VARIABLES = frozenset(variables(0, slices=2, hosts=1, ports=[0, 0]))


@dataclass(frozen=True, kw_only=True)
class Slices:
    """The slices that jobs may use: of whatever type is asked for.

    Args:
        total: How many there are; None for as many as are asked for.
    """

    total: int | None

    @classmethod
    def of(cls, simulate: str | None, slices: int | None) -> "Slices | None":
        """Read the options of a cluster; None where nothing is simulated.

        Raises:
            ValueError: An option is wrong, or there are slices of nothing.
        """
        if simulate not in (None, "tpu"):
            raise invalid("simulate", "'tpu', the one thing that LocalCluster can simulate", simulate)
        if slices is not None:
            check_count("slices", slices)
            if simulate is None:
                raise invalid("slices", "given together with simulate='tpu'", slices)
        return None if simulate is None else cls(total=slices)

    def gang(self, request: JobRequest, tpu: TpuConfig, state_dir: os.PathLike[str]) -> dict[str, int]:
        """Plan the gang of a job: how many slices, of how many hosts each."""
        return {
            "slices": self._choose(request.resources.replicas, state_dir),
            "hosts": tpu.hosts,
            "max_retries_preemption": request.max_retries_preemption,
        }

    def claim(self, gang: dict[str, int]) -> dict[str, Any] | None:
        """Return what the ledger is to count for a gang, if anything."""
        if self.total is None:
            return None
        return {"need": {"slice": gang["slices"]}, "room": {"slice": self.total}, "gpu_ids": []}

    def _choose(self, wanted: int | tuple[int, ...], state_dir: os.PathLike[str]) -> int:
        """Of several acceptable numbers, the largest that can be had now, else the smallest, to wait for."""
        if isinstance(wanted, int):
            return wanted
        free = self._free(state_dir)
        return max((number for number in wanted if number <= free), default=min(wanted))

    def _free(self, state_dir: os.PathLike[str]) -> float:
        if self.total is None:
            return float("inf")
        if not os.path.isdir(state_dir):  # noqa: PTH112 - a path of any kind
            return self.total
        claims = Ledger(os.fspath(state_dir)).claims()
        taken: float = sum(claim["need"].get("slice", 0) for claim in claims if claim["granted"])
        return self.total - taken
