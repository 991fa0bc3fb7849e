"""What this machine has: CPUs and GPUs, as far as this process may use them."""

import os
import sys
from pathlib import Path

GPUS_VARIABLE = "FRAY_LOCAL_GPUS"
_CUDA = "CUDA_VISIBLE_DEVICES"
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_CGROUP = Path("/sys/fs/cgroup")


def cpu_count() -> float:
    """Return the CPUs that this process may use; a container's share may be a fraction."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _numbers(_CGROUP / "cpu.max") or _numbers(
        _CGROUP / "cpu" / "cpu.cfs_quota_us", _CGROUP / "cpu" / "cpu.cfs_period_us"
    )
    if len(quota) == 2 and quota[0] > 0:
        return min(float(usable), quota[0] / quota[1])
    return float(usable)


def gpu_ids() -> list[str]:
    """Return the ids of the GPUs for jobs that are launched here: also inside a job, those of the machine."""
    return _gpu_ids(GPUS_VARIABLE, _CUDA)


def own_gpu_ids() -> list[str]:
    """Return the ids of the GPUs that this process may use: in a job that asked for some, only its own."""
    return _gpu_ids(_CUDA, GPUS_VARIABLE)


def _gpu_ids(*variables: str) -> list[str]:
    """Return what the first variable lists that is set; without any, all GPUs that there are."""
    visible = next((os.environ[name] for name in variables if name in os.environ), None)
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]
    return [str(number) for number, _ in enumerate(_NVIDIA.iterdir())] if _NVIDIA.is_dir() else []


def _numbers(*files: Path) -> list[int]:
    """The numbers in files of one line; none where a file is missing or says "max"."""
    try:
        return [int(word) for file in files for word in file.read_text().split()]
    except (OSError, ValueError):
        return []
