"""Simulated TPU slices: their hosts are processes of this machine, for tests of training code.

They are counted as slices and nothing else: 16 hosts of 200 CPUs each run on a laptop.
"""

import os
from dataclasses import dataclass

from fray.backend import check_count, invalid
from fray_local._cluster.admission import AdmissionFile, Amounts


@dataclass(frozen=True, kw_only=True)
class Slices:
    """The slices that jobs may use: of whatever type is requested.

    Args:
        total: How many there are; None for as many as are requested.
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

    @property
    def room(self) -> Amounts | None:
        """What is to be counted, if anything."""
        return None if self.total is None else Amounts(slice=self.total)

    def choose(self, wanted: int | tuple[int, ...], state_dir: os.PathLike[str]) -> int:
        """Of several acceptable numbers, the largest that can be had now, else the smallest, to wait for."""
        if isinstance(wanted, int):
            return wanted
        free = self._free(state_dir)
        return max((number for number in wanted if number <= free), default=min(wanted))

    def _free(self, state_dir: os.PathLike[str]) -> float:
        if self.total is None:
            return float("inf")
        claims = AdmissionFile(os.fspath(state_dir)).claims()
        return self.total - sum(claim.need.slice for claim in claims if claim.granted)
