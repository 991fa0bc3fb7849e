"""Fray on Slurm: jobs on the cluster that universities and labs have."""

from fray_slurm._client import SlurmError

__all__ = ["SlurmError"]
