"""Fray on Slurm: jobs on the cluster that universities and labs have.

Names are loaded when they are requested: what runs inside a job imports little of this package.
"""

from importlib import import_module

TYPE_CHECKING = False  # typing takes longer than all that a batch step imports
if TYPE_CHECKING:
    from typing import Any

    from fray_slurm._client import SlurmError
    from fray_slurm._cluster import SlurmCluster

__all__ = ["SlurmCluster", "SlurmError"]

_HOMES = {"SlurmCluster": "_cluster", "SlurmError": "_client"}


def __getattr__(name: str) -> "Any":
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
